"""Gradients that torch has a kernel for and no formula: of shrinking, and of repeated borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _shrink_backward(gradient: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, gradient)


def _replication_pad_backward(
    gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int]
) -> Any:
    """The border of an image gets what its copies got."""
    if min(padding) < 0:
        return NotImplemented
    result = gradient
    for number in range(len(padding) // 2):
        dim = gradient.dim() - 1 - number
        result = _folded(result, dim, padding[2 * number], padding[2 * number + 1])
    return result


def _folded(gradient: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    size = gradient.shape[dim] - before - after
    result = gradient.narrow(dim, before, size)
    behind = [0, 0] * (gradient.dim() - 1 - dim)
    if before:
        first = gradient.narrow(dim, 0, before).sum(dim, keepdim=True)
        result = result + aten.constant_pad_nd.default(first, [*behind, 0, size - 1], 0.0)
    if after:
        last = gradient.narrow(dim, before + size, after).sum(dim, keepdim=True)
        result = result + aten.constant_pad_nd.default(last, [*behind, size - 1, 0], 0.0)
    return result


def _trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """A sum of products of three, each with dims of size one put in."""
    factors = []
    for factor, expand in ((a, expand1), (b, expand2), (c, expand3)):
        for dim in sorted(expand):
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(list(sumdim)) if sumdim else product


EDGES: dict[Any, Callable[..., Any]] = {
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.replication_pad1d_backward.default: _replication_pad_backward,
    aten.replication_pad2d_backward.default: _replication_pad_backward,
    aten.replication_pad3d_backward.default: _replication_pad_backward,
    aten._trilinear.default: _trilinear,
}
