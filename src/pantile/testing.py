"""Helpers for users' tests."""

from __future__ import annotations

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """True if two nested values have the same structure and all tensors are close."""
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(ref, other)
    if isinstance(ref, (tuple, list)):
        return (
            type(ref) is type(other) and len(ref) == len(other) and all(map(allclose, ref, other))
        )
    return bool(ref == other)
