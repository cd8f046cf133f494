"""Multi-head attention and whole encoder layers, which torch has one operator for in inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from pantile.ops import eager_kernels

_OF_PATHS, _OF_KEYS, _OF_HEADS = 0, 1, 2
"""What a mask is about: [queries, keys], [batch, keys] or [batch, heads, queries, keys]."""


def _visible(mask: torch.Tensor, kind: int | None) -> torch.Tensor | None:
    """A mask to be broadcast with [batch, heads, queries, keys]; None if it is something else."""
    hidden = mask if mask.dtype is torch.bool else mask != 0
    if kind == _OF_KEYS and mask.dim() == 2:
        return ~hidden[:, None, None, :]
    if (kind, mask.dim()) in ((_OF_PATHS, 2), (_OF_HEADS, 4)):
        return ~hidden
    return None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    weights: Sequence[torch.Tensor],
    mask: torch.Tensor | None,
    heads: int,
    need_weights: bool,
    average: bool,
    mask_type: int | None,
) -> Any:
    """`pantile::attention`."""
    visible = None if mask is None else _visible(mask, mask_type)
    if mask is not None and visible is None:
        return NotImplemented
    matrix, bias, out_matrix, out_bias = weights
    given = zip((query, key, value), matrix.chunk(3), bias.chunk(3), strict=True)
    batch, length, width = query.shape
    parts = [
        functional.linear(x, rows, add).view(batch, x.shape[1], heads, -1).transpose(1, 2)
        for x, rows, add in given
    ]
    scores = torch.matmul(parts[0], parts[1].transpose(-2, -1)) / math.sqrt(width // heads)
    if visible is not None:
        scores = torch.where(visible, scores, -math.inf)
    chances = torch.softmax(scores, -1)
    mixed = torch.matmul(chances, parts[2]).transpose(1, 2).reshape(batch, length, width)
    result = functional.linear(mixed, out_matrix, out_bias)
    if not need_weights:
        return result, query.new_empty(0)
    return result, chances.mean(1) if average else chances


def encoder_layer(
    x: torch.Tensor,
    heads: int,
    attention_weights: Sequence[torch.Tensor],
    gelu: bool,
    norm_first: bool,
    eps: float,
    other_weights: Sequence[torch.Tensor],
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> Any:
    """`pantile::encoder_layer`."""
    norms, forward = (other_weights[:2], other_weights[2:4]), other_weights[4:]

    def normed(x: torch.Tensor, number: int) -> torch.Tensor:
        weight, bias = norms[number]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    start = normed(x, 0) if norm_first else x
    found = attention(start, start, start, attention_weights, mask, heads, False, False, mask_type)
    if found is NotImplemented:
        return NotImplemented
    x = x + found[0]
    x = x if norm_first else normed(x, 0)
    inner = functional.linear(normed(x, 1) if norm_first else x, forward[0], forward[1])
    inner = functional.gelu(inner) if gelu else torch.relu(inner)
    x = x + functional.linear(inner, forward[2], forward[3])
    return x if norm_first else normed(x, 1)


ENCODERS: dict[Any, Callable[..., Any]] = {
    eager_kernels.attention._opoverload: attention,
    eager_kernels.encoder_layer._opoverload: encoder_layer,
}
