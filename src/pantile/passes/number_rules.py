"""Ops that take a Python number, written with the number as a tensor.

    add(%p, %g, alpha=%a)          ->     add(%p, mul(%g, %a))
    addcdiv(%p, %m, %d, value=%s)  ->     add(%p, div(mul(%m, %s), %d))
    full([3], %s)                  ->     clone(expand(%s, [3]))

A rule is a formula on terms (see formula.py): `a`, `b`, `c` are tensors or numbers, `None` is an
argument not given. Rules have the names of the ops; `_foreach_add` follows the rule of `add` for
each of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pantile.passes.formula import Operand, Term

aten = torch.ops.aten


def _add(a: Operand, b: Operand, alpha: Operand = 1) -> Operand:
    return a + _times(b, alpha)


def _sub(a: Operand, b: Operand, alpha: Operand = 1) -> Operand:
    return a - _times(b, alpha)


def _rsub(a: Operand, b: Operand, alpha: Operand = 1) -> Operand:
    return b - _times(a, alpha)


def _lerp(a: Term, b: Term, weight: Operand) -> Term:
    # Exact at both ends; 1 - weight is computed once, as a number.
    return a * (1 - weight) + b * weight


def _addcmul(a: Term, b: Term, c: Term, value: Operand = 1) -> Term:
    if isinstance(value, Term):
        return a + b * value * c
    return a.call(aten.addcmul.default, b, c, value=value)


def _addcdiv(a: Term, b: Term, c: Term, value: Operand = 1) -> Term:
    if isinstance(value, Term):
        return a + b * value / c
    return a.call(aten.addcdiv.default, b, c, value=value)


def _clamp(a: Term, low: Operand | None = None, high: Operand | None = None) -> Term:
    if not isinstance(low, Term) and not isinstance(high, Term):
        return a.call(aten.clamp.default, low, high)
    bounds = [None if bound is None else a.beside(bound) for bound in (low, high)]
    return a.call(aten.clamp.Tensor, *bounds)


def _addmm(a: Term, left: Term, right: Term, beta: Operand = 1, alpha: Operand = 1) -> Operand:
    return _times(a, beta) + _times(left.call(aten.mm.default, right), alpha)


def _baddbmm(a: Term, left: Term, right: Term, beta: Operand = 1, alpha: Operand = 1) -> Operand:
    return _times(a, beta) + _times(left.call(aten.bmm.default, right), alpha)


def _masked_fill(a: Term, mask: Term, value: Operand) -> Term:
    return a.call(aten.masked_fill.Tensor, mask, a.beside(value))


def _times(a: Operand, factor: Operand) -> Operand:
    return a if not isinstance(factor, Term) and factor == 1 else a * factor


def _compared(op: Any) -> Callable[..., Term]:
    return lambda a, b: a.call(op, b)


def _unary(op: Any) -> Callable[[Term], Term]:
    return lambda a: a.call(op)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "lerp": _lerp,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "clamp": _clamp,
    "clamp_min": lambda a, low: _clamp(a, low),
    "clamp_max": lambda a, high: _clamp(a, None, high),
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "masked_fill": _masked_fill,
    "maximum": lambda a, b: a.call(aten.maximum.default, a.beside(b)),
    "minimum": lambda a, b: a.call(aten.minimum.default, a.beside(b)),
}
"""Rules whose result is rounded to its type once, when all is computed."""

COMPARISONS: dict[str, Callable[..., Term]] = {
    name: _compared(getattr(aten, name).Tensor) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
"""Rules that compare in the type of the tensor, to which the number is rounded first."""

FILLED = {"full": 1, "full_like": 1, "scalar_tensor": 0, "fill": 1, "new_full": 2}
"""Ops that make a tensor of one number, with the place of the number among their arguments."""

UNARY: dict[str, Callable[[Term], Term]] = {
    name: _unary(getattr(aten, name).default)
    for name in (
        *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1"),
        *("floor", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    )
}
"""What `_foreach_*` does to each tensor, besides arithmetic."""
