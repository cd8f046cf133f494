"""Operators written in simpler ones, before kernels are planned.

What they are made of fuses with what is around: the variance of a batch reads the convolution's
result where it lies, and the scores of attention become probabilities in the same pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pantile.lowering.kernels.bags import embedding_bag, embedding_bag_backward
from pantile.lowering.kernels.edges import EDGES
from pantile.lowering.kernels.encoders import ENCODERS
from pantile.lowering.kernels.norms import NORMS
from pantile.lowering.kernels.pools import POOLS
from pantile.lowering.kernels.recurrent import lstm, lstm_backward
from pantile.lowering.kernels.sorting import SORTING
from pantile.lowering.kernels.torch_rules import Rules
from pantile.lowering.kernels.upsampling import upsampling
from pantile.lowering.kernels.volumes import VOLUMES
from pantile.passes.philox import PHILOX

aten = torch.ops.aten

_KEPT = frozenset(
    {
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        PHILOX,
    }
)


def decompositions() -> Rules:
    """The table: ours, and torch's."""
    own: dict[Any, Callable[..., Any]] = {}
    for more in (_OWN, upsampling(), SORTING, EDGES, NORMS, POOLS, VOLUMES, ENCODERS):
        own.update(more)
    return Rules(own, _KEPT)


def _add_product(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    return x + (a * b if value == 1 else value * a * b)


def _add_quotient(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    return x + (a / b if value == 1 else value * (a / b))


def _var_mean(
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = list(range(x.dim())) if not dim else [d % x.dim() for d in dim]
    count = math.prod(x.shape[d] for d in dims)
    mean = x.mean(dims, keepdim=True)
    apart = x - mean
    squares = apart * apart
    if correction == 0:
        variance = squares.mean(dims, keepdim=keepdim)
    else:
        degrees = max(0.0, count - (1 if correction is None else correction))
        variance = squares.sum(dims, keepdim=keepdim) / degrees
    return variance, mean if keepdim else mean.squeeze(dims)


def _var(x: torch.Tensor, dim: Sequence[int] | None = None, **how: Any) -> torch.Tensor:
    return _var_mean(x, dim, **how)[0]


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    causal: bool,
    mask: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, float]:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * factor
    if mask is not None:
        scores = scores + mask
    if causal:
        # As wide as the scores, so that they are compared in the same registers.
        rows = torch.arange(query.shape[-2], dtype=torch.int32).unsqueeze(1)
        columns = torch.arange(key.shape[-2], dtype=torch.int32).unsqueeze(0)
        scores = torch.where(columns <= rows, scores, -math.inf)
    return scores, factor


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    scores, _ = _scores(query, key, is_causal, attn_mask, scale)
    most = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - most)
    total = powers.sum(-1, keepdim=True)
    result = torch.matmul(powers, value) / total  # fewer are divided
    return result.transpose(1, 2).clone().transpose(1, 2), (most + total.log()).squeeze(-1)


def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    scores, factor = _scores(query, key, is_causal, attn_mask, scale)
    chances = torch.exp(scores - logsumexp.unsqueeze(-1))
    to_value = torch.matmul(chances.transpose(-2, -1), gradient)
    along = (gradient * out).sum(-1, keepdim=True)
    to_chances = torch.matmul(gradient, value.transpose(-2, -1))
    to_scores = chances * (to_chances - along) * factor
    to_query = torch.matmul(to_scores, key)
    to_key = torch.matmul(to_scores.transpose(-2, -1), query)
    return to_query, to_key, to_value


def _glu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    value, gate = x.chunk(2, dim)
    return value * torch.sigmoid(gate)


def _empty(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], **how: Any) -> torch.Tensor:
    """Memory that is written later."""
    return torch.empty_strided(tuple(size), tuple(stride), dtype=how.get("dtype") or x.dtype)


def _max(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


def _min(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


def _index_put(
    x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> Any:
    """One number where a mask says so is a choice."""
    masks = [mask for mask in indices if mask is not None]
    lone = len(masks) == 1 and indices[0] is not None and values.numel() == 1
    if not lone or accumulate or masks[0].dtype is not torch.bool:
        return NotImplemented
    (mask,) = masks
    mask = mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))
    return torch.where(mask, values.reshape(()), x)


def _softmax_backward(
    gradient: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """As eager's kernel has it: subtracted first, less is lost where gradients are alike."""
    mean = torch.sum(gradient * output, dim, keepdim=True)
    return ((gradient - mean) * output).to(dtype)


_OWN: dict[Any, Callable[..., Any]] = {
    aten._softmax_backward_data.default: _softmax_backward,
    aten.var_mean.correction: _var_mean,
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_backward.default: embedding_bag_backward,
    aten.max.default: torch.amax,
    aten.min.default: torch.amin,
    aten.max.dim: _max,
    aten.min.dim: _min,
    aten.index_put.default: _index_put,
    aten.new_empty_strided.default: _empty,
    aten.var.correction: _var,
    aten.addcmul.default: _add_product,
    aten.addcdiv.default: _add_quotient,
    aten.glu.default: _glu,
    aten.mkldnn_rnn_layer.default: lstm,
    aten.mkldnn_rnn_layer_backward.default: lstm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
