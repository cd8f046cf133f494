"""Operators that compute each element by itself: their C++.

The functions named `op_…` are overloaded for the types of numbers (templates/operators.h).
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels import operators as own
from pantile.lowering.kernels.index import Index
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import HALVES, computed, cpp, dtype_of, shape_of
from pantile.passes.philox import PHILOX

aten = torch.ops.aten
prims = torch.ops.prims

_SMALL_EXPONENT = 100
"""Powers of two whose reciprocals are floats with all their digits."""

Rule = Callable[[Trace, fx.Node, Index], str]


def _arithmetic(text: str, *, chooses: bool = False, scales: bool = False) -> Rule:
    """All operands are of the type of the result; it may be one of them, but for its sign.

    If it `scales`, single numbers are of the type that is computed in: eager rounds 0.1 to a half
    before it adds it, but not before it multiplies by it.
    """

    def rule(trace: Trace, node: fx.Node, index: Index) -> str:
        dtype = dtype_of(node)
        single = computed(dtype) if scales else dtype
        operands = [
            trace.operand(value, index, single if _is_single(value) else dtype)
            for value in node.args
        ]
        result = trace.state(cpp(dtype), text.format(*operands), operands)
        return trace.chosen(result, operands, dtype) if chooses else result

    return rule


def _is_single(value: Any) -> bool:
    return not isinstance(value, fx.Node) or not shape_of(value)


def _rounding(name: str) -> Rule:
    """Whole numbers stay what they are."""
    rounds = _function(name)

    def rule(trace: Trace, node: fx.Node, index: Index) -> str:
        if dtype_of(node).is_floating_point:
            return rounds(trace, node, index)
        return trace.operand(node.args[0], index, dtype_of(node))

    return rule


def _remainder(trace: Trace, node: fx.Node, index: Index) -> str:
    if dtype_of(node).is_floating_point:
        return _arithmetic("op_fmod({0}, {1})")(trace, node, index)
    _check_divisor(node.args[1])
    return _arithmetic("{0} % {1}")(trace, node, index)


def _rounded_quotient(trace: Trace, node: fx.Node, index: Index) -> str:
    mode = node.kwargs.get("rounding_mode")
    if mode is None:
        return _arithmetic("{0} / {1}")(trace, node, index)
    if not dtype_of(node).is_floating_point:
        _check_divisor(node.args[1])
    return _arithmetic(f"op_div_{mode}({{0}}, {{1}})")(trace, node, index)


def _quotient(trace: Trace, node: fx.Node, index: Index) -> str:
    """By a power of two it is a product, which is the same number: kernels share that factor."""
    divisor: Any = node.args[1]
    dtype = dtype_of(node)
    if not dtype.is_floating_point or not _has_exact_reciprocal(divisor):
        return _arithmetic("{0} / {1}", scales=True)(trace, node, index)
    a = trace.operand(node.args[0], index, dtype)
    b = trace.operand(1 / divisor, index, computed(dtype))
    return trace.state(cpp(dtype), f"op_mul({a}, {b})", [a, b])


def _has_exact_reciprocal(number: Any) -> bool:
    if not isinstance(number, (int, float)):
        return False
    mantissa, exponent = frexp(number)
    return abs(mantissa) == 0.5 and abs(exponent) < _SMALL_EXPONENT


def _modulo(trace: Trace, node: fx.Node, index: Index) -> str:
    """The remainder that has the sign of the divisor."""
    if not dtype_of(node).is_floating_point:
        _check_divisor(node.args[1])
    return _arithmetic("op_modulo({0}, {1})")(trace, node, index)


def _check_divisor(divisor: Any) -> None:
    if not isinstance(divisor, int) or divisor <= 0:  # by zero it would end the process
        raise Refused("whole numbers divided by other than a positive constant")


def _scaled(name: str) -> Rule:
    """Sum or difference, the second operand times `alpha`."""

    def rule(trace: Trace, node: fx.Node, index: Index) -> str:
        dtype = dtype_of(node)
        a, b = (trace.operand(value, index, dtype) for value in node.args[:2])
        alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
        if alpha != 1:
            factor = trace.operand(alpha, index, dtype)
            b = trace.state(cpp(dtype), f"op_mul({factor}, {b})", [b, factor])
        return trace.state(cpp(dtype), f"op_{name}({a}, {b})", [a, b])

    return rule


def _comparison(text: str) -> Rule:
    """Operands are of their common type."""

    def rule(trace: Trace, node: fx.Node, index: Index) -> str:
        dtype = _common(node.args)
        operands = [trace.operand(value, index, dtype) for value in node.args]
        return trace.state("bool", text.format(*operands), operands)

    return rule


def _logical(text: str) -> Rule:
    def rule(trace: Trace, node: fx.Node, index: Index) -> str:
        operands = [trace.operand(value, index, torch.bool) for value in node.args]
        return trace.state("bool", text.format(*operands), operands)

    return rule


def _common(values: Any) -> torch.dtype:
    metas = [value.meta["val"] if isinstance(value, fx.Node) else value for value in values]
    dtype = metas[0].dtype if len(metas) == 1 else torch.result_type(metas[0], metas[1])
    return dtype


def _where(trace: Trace, node: fx.Node, index: Index) -> str:
    dtype = dtype_of(node)
    condition = trace.operand(node.args[0], index, torch.bool)
    a, b = (trace.operand(value, index, dtype) for value in node.args[1:3])
    result = trace.state(cpp(dtype), f"{condition} ? {a} : {b}", [condition, a, b])
    return trace.chosen(result, [a, b], dtype)


def _convert(trace: Trace, node: fx.Node, index: Index) -> str:
    return trace.operand(node.args[0], index, dtype_of(node))


def _power(trace: Trace, node: fx.Node, index: Index) -> str:
    base, exponent = node.args[:2]
    dtype = dtype_of(node)
    simple = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "op_sqrt({0})", -1: "1 / {0}"}
    if isinstance(exponent, (int, float)) and exponent in simple and dtype.is_floating_point:
        operand = trace.operand(base, index, dtype)
        return trace.state(cpp(dtype), simple[exponent].format(operand), [operand])
    if not dtype.is_floating_point:
        raise Refused(f"powers of {dtype}")
    a, b = trace.operand(base, index, dtype), trace.operand(exponent, index, dtype)
    return trace.state(cpp(dtype), f"op_pow({a}, {b})", [a, b])


def _reinterpret(trace: Trace, node: fx.Node, index: Index) -> str:
    """The same bits as another type of as many; a half has none while it is computed with."""
    source: Any = node.args[0]
    given, wanted = dtype_of(source), dtype_of(node)
    if given.itemsize != wanted.itemsize or {given, wanted} & {*HALVES, torch.bool}:
        raise Refused(f"the bits of {given} as {wanted}")
    value = trace.operand(source, index, given)
    return trace.state(cpp(wanted), f"__builtin_bit_cast({cpp(wanted)}, {value})", [value])


def _random_bits(trace: Trace, node: fx.Node, index: Index) -> str:
    """64 bits for an element; see passes/philox.py."""
    element = trace.operand(node.args[0], index, torch.int32)
    seed = trace.operand(node.args[1], (), torch.int64)
    return trace.state("i64", f"i_philox({element}, {seed})", [element, seed])


def _clamp(trace: Trace, node: fx.Node, index: Index) -> str:
    dtype = dtype_of(node)
    arguments = dict(zip(("self", "min", "max"), node.args, strict=False)) | dict(node.kwargs)
    result = trace.operand(arguments["self"], index, dtype)
    for name in ("min", "max"):
        if arguments.get(name) is not None:
            bound = trace.operand(arguments[name], index, dtype)
            function = "op_max" if name == "min" else "op_min"
            operands = [result, bound]
            result = trace.state(cpp(dtype), f"{function}({result}, {bound})", operands)
            trace.chosen(result, operands, dtype)
    return result


def _function(name: str) -> Rule:
    return _arithmetic(f"op_{name}({{0}})", chooses=name in ("abs", "relu"))


_FUNCTIONS = (
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
_ROUNDINGS = ("ceil", "floor", "round", "trunc")
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "left_shift": "op_left({0}, {1})",
    "right_shift": "op_right({0}, {1})",
}

POINTWISE: dict[Any, Rule] = {
    **{getattr(aten, name).default: _function(name) for name in _FUNCTIONS},
    **{getattr(aten, name).default: _rounding(name) for name in _ROUNDINGS},
    **{
        getattr(getattr(aten, name), overload): _comparison(f"{{0}} {sign} {{1}}")
        for name, sign in _COMPARISONS.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(aten, f"bitwise_{name}"), overload): _arithmetic(text)
        for name, text in _BITS.items()
        for overload in ("Tensor", "Scalar" if name in ("and", "or", "xor") else "Tensor_Scalar")
    },
    aten.add.Tensor: _scaled("add"),
    aten.sub.Tensor: _scaled("sub"),
    aten.add.Scalar: _scaled("add"),
    aten.sub.Scalar: _scaled("sub"),
    aten.mul.Tensor: _arithmetic("op_mul({0}, {1})", scales=True),
    aten.mul.Scalar: _arithmetic("op_mul({0}, {1})", scales=True),
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.neg.default: _arithmetic("op_neg({0})", chooses=True),
    aten.maximum.default: _arithmetic("op_max({0}, {1})", chooses=True),
    aten.minimum.default: _arithmetic("op_min({0}, {1})", chooses=True),
    aten.fmod.Tensor: _remainder,
    aten.fmod.Scalar: _remainder,
    aten.remainder.Tensor: _modulo,
    aten.remainder.Scalar: _modulo,
    aten.div.Tensor_mode: _rounded_quotient,
    aten.div.Scalar_mode: _rounded_quotient,
    own.fma: _arithmetic("{0} * {1} + {2}"),
    aten.atan2.default: _arithmetic("op_atan2({0}, {1})"),
    aten.copysign.Tensor: _arithmetic("op_copysign({0}, {1})"),
    aten.copysign.Scalar: _arithmetic("op_copysign({0}, {1})"),
    aten.hypot.default: _arithmetic("op_hypot({0}, {1})"),
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _arithmetic("op_max({0}, {1})", chooses=True),
    aten.clamp_max.default: _arithmetic("op_min({0}, {1})", chooses=True),
    aten.clamp_min.Tensor: _arithmetic("op_max({0}, {1})", chooses=True),
    aten.clamp_max.Tensor: _arithmetic("op_min({0}, {1})", chooses=True),
    aten.where.self: _where,
    aten.view.dtype: _reinterpret,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Scalar: _power,
    aten.isnan.default: _comparison("{0} != {0}"),
    aten.isinf.default: _comparison("op_isinf({0})"),
    aten.logical_and.default: _logical("{0} && {1}"),
    aten.logical_or.default: _logical("{0} || {1}"),
    aten.logical_xor.default: _logical("{0} != {1}"),
    aten.logical_not.default: _logical("!{0}"),
    aten.bitwise_not.default: _arithmetic("op_not({0})"),
    PHILOX: _random_bits,
    prims.convert_element_type.default: _convert,
}

COSTS: dict[Any, float] = {
    **dict.fromkeys((aten.exp.default, aten.sigmoid.default, aten.rsqrt.default), 8.0),
    **dict.fromkeys((aten.log.default, aten.log1p.default, aten.expm1.default), 10.0),
    **dict.fromkeys(
        (aten.erf.default, aten.tanh.default, aten.sin.default, aten.cos.default), 12.0
    ),
    aten.sqrt.default: 6.0,
    aten.div.Tensor: 2.0,
    aten.pow.Tensor_Tensor: 20.0,
    PHILOX: 8.0,
}
"""What an operator costs more than an addition, in additions."""
