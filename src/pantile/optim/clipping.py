"""Clip gradients by their global norm, as `torch.nn.utils.clip_grad_norm_` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pantile.optim.accumulators import NARROW


def clip_by_global_norm(parameters: Sequence[Any], max_norm: float) -> None:
    """Give each parameter a scaled gradient, so that together they are no longer than `max_norm`.

    The scale is at most 1 and is always multiplied in: no branch depends on a value, so the rule
    can be captured. The gradient tensor itself is left alone; in a program it may be a view of an
    accumulator.
    """
    if not parameters:
        return
    norms = [torch.linalg.vector_norm(p.grad, dtype=_norm_dtype(p.grad)) for p in parameters]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for parameter in parameters:
        parameter.grad = parameter.grad * scale.to(parameter.grad.dtype)


def _norm_dtype(gradient: Tensor) -> torch.dtype | None:
    # The sum of squares of a half tensor overflows long before its norm does.
    return torch.float32 if gradient.dtype in NARROW else None
