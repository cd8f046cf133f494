"""Helpers for users' tests."""

from __future__ import annotations

from typing import Any

import torch


def allclose(reference: Any, other: Any) -> bool:
    """True if two nested values have the same structure and all tensors are close."""
    if isinstance(reference, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(reference, other)
    if isinstance(reference, (tuple, list)):
        return (
            type(reference) is type(other)
            and len(reference) == len(other)
            and all(map(allclose, reference, other))
        )
    return bool(reference == other)
