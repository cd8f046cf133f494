"""Sorting of short rows, in simpler operators: everybody counts who comes before him.

    x        3  1  2          place    2  0  1          order    1  2  0

Equal values stay in their order; a NaN is larger than all numbers. This takes the square of a row's
length, so long rows are left to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_LONGEST = 256


def _order(x: torch.Tensor, descending: bool) -> torch.Tensor:
    """Along the last dim: which element comes first, which second, …"""
    count = x.shape[-1]
    mine, other = x.unsqueeze(-1), x.unsqueeze(-2)
    if x.dtype.is_floating_point:
        odd, odd_other = mine != mine, other != other  # NaN
        larger = ((other > mine) & ~odd) | (odd_other & ~odd)
        same = (mine == other) | (odd & odd_other)
    else:
        larger, same = other > mine, mine == other
    numbers = torch.arange(count)
    earlier = numbers.unsqueeze(0) < numbers.unsqueeze(1)
    first = larger if descending else ~larger & ~same
    place = (first | (same & earlier)).sum(-1)
    is_there = place.unsqueeze(-2) == numbers.unsqueeze(1)
    return torch.where(is_there, numbers, 0).sum(-1)


def _sorted(x: torch.Tensor, dim: int, descending: bool, most: int | None = None) -> Any:
    if not x.dim() or x.shape[dim] > _LONGEST or x.dtype is torch.bool:
        return NotImplemented
    turned = x.transpose(dim, -1)
    order = _order(turned, descending)
    order = order if most is None else order[..., :most].contiguous()
    values = torch.gather(turned.contiguous(), -1, order)
    return values.transpose(dim, -1), order.transpose(dim, -1)


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return _sorted(x, dim, descending)


def _stable_sort(
    x: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    return _sorted(x, dim, descending)


def _topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _sorted(x, dim, largest, k)


SORTING: dict[Any, Callable[..., Any]] = {
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.topk.default: _topk,
}
