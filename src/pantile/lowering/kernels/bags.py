"""Sums and means of rows of a table, bag by bag, in simpler operators.

offsets [0, 3, 3]     rows 0, 1, 2 are in bag 0, none in bag 1, the rest in bag 2
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_SUM, _MEAN = 0, 1


def _places(offsets: torch.Tensor, rows: int, last: bool) -> torch.Tensor:
    """The bag of every row."""
    starts = offsets[:-1] if last else offsets
    return (starts.unsqueeze(0) <= torch.arange(rows).unsqueeze(1)).sum(1) - 1


def _shares(bags: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a row counts in the mean of its bag."""
    here = bags.unsqueeze(0) == torch.arange(count).unsqueeze(1)
    return (1 / here.sum(1).clamp(min=1).to(dtype))[bags]


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """`_embedding_bag`; the backward needs only the numbers of the bags."""
    if mode not in (_SUM, _MEAN) or per_sample_weights is not None or padding_idx >= 0:
        return NotImplemented
    count = offsets.shape[0] - include_last_offset
    bags = _places(offsets, indices.shape[0], include_last_offset)
    rows = weight[indices]
    if mode == _MEAN:
        rows = rows * _shares(bags, count, weight.dtype).unsqueeze(1)
    start = torch.zeros(count, weight.shape[1], dtype=weight.dtype)
    sums = aten.index_put.default(start, [bags], rows, True)
    return sums, bags, offsets.clone(), offsets.clone()


def embedding_bag_backward(
    gradient: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bags: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """`_embedding_bag_backward`: of the table."""
    plain = not scale_grad_by_freq and not sparse and per_sample_weights is None
    if mode not in (_SUM, _MEAN) or not plain or padding_idx >= 0:
        return NotImplemented
    rows = gradient[bags]
    if mode == _MEAN:
        rows = rows * _shares(bags, gradient.shape[0], gradient.dtype).unsqueeze(1)
    start = torch.zeros(num_weights, gradient.shape[1], dtype=gradient.dtype)
    return aten.index_put.default(start, [indices], rows, True)
