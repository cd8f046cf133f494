"""Operators on numbers of 16 bits, decomposed in float32 and rounded at the end.

    gelu(x)  bfloat16        ->        x as float32;  0.5 * x * (1 + erf(x / sqrt 2));  as bfloat16

An operator of eager rounds its result, not what it computes on the way: so does its decomposition
here, whoever wrote it. What only moves numbers, or is but another name, is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from pantile.lowering.kernels.types import HALVES

Decomposition = Callable[..., Any]

_MOVES = """
    _to_copy _unsafe_index_put _unsafe_view alias_copy arange block_diag cat clone copy diag
    diag_embed diagonal_backward diagonal_copy empty_like empty_permuted expand_copy fill flip full
    full_like index_copy index_fill index_select lift masked_fill masked_scatter
    narrow_copy new_empty new_empty_strided new_full new_ones new_zeros ones_like permute_copy
    pixel_shuffle pixel_unshuffle rand_like randn_like reflection_pad1d reflection_pad2d
    reflection_pad3d repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll
    rot90 select_backward slice_backward split_with_sizes_copy squeeze_copy stack t_copy take
    transpose_copy tril triu type_as unbind_copy unfold_copy unsafe_split unsafe_split_with_sizes
    unsqueeze_copy view_copy where zero zeros_like
"""
_NAMES = "add clamp clip divide max min multiply rsub sub subtract true_divide"
_LEFT = frozenset(f"aten::{name}" for name in f"{_MOVES} {_NAMES}".split())


def in_single(table: dict[Any, Decomposition]) -> dict[Any, Decomposition]:
    """The same decompositions, those that compute in float32 where they are given halves."""
    return {op: _in_single(op, rule) if _computes(op) else rule for op, rule in table.items()}


def _computes(op: Any) -> bool:
    if not isinstance(op, OpOverload) or op._schema.is_mutable or op._schema.name in _LEFT:
        return False
    return not any(result.alias_info for result in op._schema.returns)


def _in_single(op: OpOverload, rule: Decomposition) -> Decomposition:
    @wraps(rule)
    def wide(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_half, pytree.tree_leaves((args, kwargs)))):
            return rule(*args, **kwargs)
        given, named = pytree.tree_map(_widened, (args, kwargs))
        results = rule(*given, **named)
        if results is NotImplemented:
            return results
        own = _results(op, args, kwargs)
        if isinstance(results, torch.Tensor):
            return _like(results, own)
        return tuple(map(_like, results, own))

    return wide


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in HALVES


def _widened(value: Any) -> Any:
    if _is_half(value):
        return value.to(torch.float32)
    return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value


def _results(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """What the operator itself returns, of which nothing is written down."""
    with _disable_current_modes():  # stand-ins know their own
        return op(*args, **kwargs)


def _like(result: Any, own: Any) -> Any:
    if isinstance(result, torch.Tensor) and isinstance(own, torch.Tensor) and _is_half(own):
        return result.to(own.dtype)
    return result
