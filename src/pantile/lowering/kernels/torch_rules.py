"""Torch's decompositions, those of usual operators known without Inductor's table.

    usual operator      ──▶  torch's registry, which is there anyway
    any other           ──▶  Inductor's table: 28 modules and 0.12 s, the first time

Which rule is found does not depend on what was imported: for usual operators, Inductor's table has
the same ones. Where it has rules for special cases only, these are asked for in such a case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from pantile.lowering.kernels.halves import in_single
from pantile.lowering.retrace import inductor_table

aten = torch.ops.aten

Rule = Callable[..., Any]

_LEFT = """
    _unsafe_index _unsafe_masked_index _unsafe_masked_index_put_accumulate abs acos acosh alias
    argmax argmin as_strided asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil clamp_max clamp_min clone copy copy_ cos cosh
    cumprod cumsum div embedding eq erf erfc exp exp2 expand expm1 floor fmod gather ge gt index
    isinf isnan le log log10 log1p log2 logical_and logical_not logical_or logical_xor lt
    maximum mean minimum mul ne neg permute pow
    reciprocal relu remainder repeat rsqrt scalar_tensor scatter scatter_add select select_scatter
    sigmoid sign sin sinh slice slice_scatter split sqrt squeeze sub sum tan tanh to trunc
    unbind unfold unsqueeze view
"""
NO_RULE = frozenset(f"aten::{name}" for name in _LEFT.split()) | {
    "prims::convert_element_type",
    "prims::iota",
}
"""Operators that are not decomposed."""

_FROM_REGISTRY = """
    _log_softmax _log_softmax_backward_data _native_batch_norm_legit_functional _softmax _to_copy
    _unsafe_view arange detach elu elu_backward gelu gelu_backward hardsigmoid hardswish
    hardtanh leaky_relu leaky_relu_backward linalg_vector_norm logsumexp mse_loss
    mse_loss_backward native_batch_norm native_batch_norm_backward native_dropout
    native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm_backward
    new_zeros nll_loss_backward nll_loss_forward ones_like rsub select_backward sigmoid_backward
    silu_backward slice_backward smooth_l1_loss softplus stack t tanh_backward threshold_backward
    transpose tril triu zeros zeros_like
"""
REGISTERED = frozenset(f"aten::{name}" for name in _FROM_REGISTRY.split())
"""Operators whose rule is that of torch's registry."""


def _complex_sum(x: Any, y: Any, **_: Any) -> bool:
    return all(isinstance(value, Tensor) and value.is_complex() for value in (x, y))


def _single_row(x: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> bool:
    return a.shape[0] == 1


def _thin(a: Tensor, b: Tensor, *_: Any, **__: Any) -> bool:
    return 1 in (a.shape[-2], a.shape[-1])


def _of_bools(x: Tensor, *_: Any, **__: Any) -> bool:
    return x.dtype is torch.bool


def _empty_or_equal(tensors: Any, dim: int = 0) -> bool:
    return all(t is tensors[0] for t in tensors) or any(0 in t.shape for t in tensors)


def _untyped(size: Any, fill_value: Any, **how: Any) -> bool:
    return how.get("dtype") is None


SPECIAL: dict[Any, Callable[..., bool]] = {
    aten.add.Scalar: _complex_sum,
    aten.add.Tensor: _complex_sum,
    aten.addmm.default: _single_row,
    aten.mm.default: _thin,
    aten.bmm.default: _thin,
    aten.amax.default: _of_bools,
    aten.amin.default: _of_bools,
    aten.cat.default: _empty_or_equal,
    aten.full.default: _untyped,
}
"""Operators that Inductor decomposes in these cases at most."""


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    return decomposition_table[aten.native_layer_norm.default](x, shape, weight, bias, eps)


def _full_like(x: Tensor, fill_value: Any, **how: Any) -> Any:
    asked = how.pop("memory_format", None) or torch.preserve_format
    if asked is not torch.preserve_format or not x.is_contiguous():
        return _whole()[aten.full_like.default](x, fill_value, memory_format=asked, **how)
    given: dict[str, Any] = {"dtype": x.dtype, "layout": x.layout, "device": x.device}
    given |= {name: how[name] for name in given if how.get(name) is not None}
    return torch.full(x.shape, fill_value, pin_memory=False, **given)


def _embedding_backward(*args: Any) -> Any:
    return decomposition_table[aten.embedding_dense_backward.default](*args)


FORWARDED: dict[Any, Rule | None] = {
    aten.where.self: None,
    aten.full_like.default: _full_like,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding_dense_backward.default: _embedding_backward,
}
"""Operators whose rule in Inductor's table does the same, on CPUs; none for one of them."""


class Rules(Mapping[Any, Rule]):
    """Rules of our own, and torch's for all other operators but some that are kept."""

    def __init__(self, own: Mapping[Any, Rule], kept: Collection[Any]) -> None:
        self._own, self._kept = own, kept
        self._found: dict[Any, Rule | None] = {}

    def __getitem__(self, op: Any) -> Rule:
        if op not in self._found:
            rule = self._own[op] if op in self._own else self._torch_rule(op)
            self._found[op] = None if rule is None else in_single({op: rule})[op]
        found = self._found[op]
        if found is None:
            raise KeyError(op)
        return found

    def __iter__(self) -> Iterator[Any]:
        yield from self._own
        yield from (op for op in _whole() if op not in self._own and op not in self._kept)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _torch_rule(self, op: Any) -> Rule | None:
        return None if op in self._kept else torch_rule(op)


def torch_rule(op: Any) -> Rule | None:
    """The rule Inductor has for an operator, if it has one; wherever it is found."""
    if isinstance(op, OpOverload) and op._schema.name in NO_RULE:
        return None
    if isinstance(op, OpOverload) and op._schema.name in REGISTERED:
        return decomposition_table.get(op)
    if op in FORWARDED:
        return FORWARDED[op]
    return _cautious(op, SPECIAL[op]) if op in SPECIAL else _whole().get(op)


def _cautious(op: Any, is_special: Callable[..., bool]) -> Rule:
    """Inductor's rule for special cases; there is none for others."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return _whole()[op](*args, **kwargs) if is_special(*args, **kwargs) else NotImplemented

    return rule


def _multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


@cache
def _whole() -> dict[Any, Rule]:
    """Inductor's table."""
    table = inductor_table(())
    # An operator that there is only after Inductor was imported: not a name of a table elsewhere.
    table[torch.ops.prims.fma.default] = _multiply_add
    return table
