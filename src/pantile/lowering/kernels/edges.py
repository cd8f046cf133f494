"""What torch has kernels for and no formulas: gradients of borders and products, and some sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pantile.ops import eager_kernels

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


def _prod_backward(
    gradient: torch.Tensor, x: torch.Tensor, dim: int | None, keepdim: bool
) -> torch.Tensor:
    """The product of all others: of a lone zero that of the rest, of one of several nothing."""
    dims = list(range(x.dim())) if dim is None else [dim % x.dim()] if x.dim() else []
    empty = x == 0
    others = torch.where(empty, 1.0, x)
    zeros = empty.to(torch.int32)
    for one in dims:
        others, zeros = others.prod(one, keepdim=True), zeros.sum(one, keepdim=True)
    if dim is not None and not keepdim and dims:
        gradient = gradient.unsqueeze(dims[0])
    plain = gradient * others / torch.where(empty, 1.0, x)
    alone = torch.where(zeros == 1, gradient * others, 0.0)
    return torch.where(zeros == 0, plain, torch.where(empty, alone, 0.0))


def _addbmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """A sum of products is one product of all side by side."""
    rows, columns = a.transpose(0, 1).flatten(1), b.flatten(0, 1)
    return torch.addmm(x, rows, columns, beta=beta, alpha=alpha)


EDGES: dict[Any, Callable[..., Any]] = {
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.replication_pad1d_backward.default: _replication_pad_backward,
    aten.replication_pad2d_backward.default: _replication_pad_backward,
    aten.replication_pad3d_backward.default: _replication_pad_backward,
    aten._trilinear.default: _trilinear,
    aten.addbmm.default: _addbmm,
    eager_kernels.prod_backward._opoverload: _prod_backward,
}
