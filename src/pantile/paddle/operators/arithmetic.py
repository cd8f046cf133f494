"""Sums, products and comparisons of two tensors, scaling, matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch

from pantile.paddle.call import Call, Table, Tensor, Translation, one_tensor, with_attributes


def _aligned(call: Call) -> tuple[Tensor, Tensor]:
    """Put the shorter operand where `axis` says: at the end, or with its first dim at `axis`."""
    x, y, axis = call.tensor("X"), call.tensor("Y"), call.integer("axis", -1)
    if axis == -1 or x.dim() == y.dim():
        return x, y
    if y.dim() < x.dim():
        return x, _trailing_ones(y, x.dim() - axis - y.dim())
    return _trailing_ones(x, y.dim() - axis - x.dim()), y


def _trailing_ones(tensor: Tensor, count: int) -> Tensor:
    return tensor.reshape([*tensor.shape, *[1] * max(count, 0)])


def _elementwise(function: Callable[[Tensor, Tensor], Tensor]) -> Translation:
    def translate(call: Call) -> None:
        call.put(function(*_aligned(call)))

    return translate


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _scale(call: Call, x: Tensor) -> Tensor:
    factor: Tensor | float = call.number("scale", 1.0)
    given = call.optional("ScaleTensor")
    if given is not None:
        factor = given.reshape(())
    bias: float = call.number("bias", 0.0)
    if not x.is_floating_point() and isinstance(factor, float) and factor.is_integer():
        factor, bias = int(factor), int(bias)
    if not bias:
        return (x * factor).to(x.dtype)
    if call.flag("bias_after_scale", True):
        return (x * factor + bias).to(x.dtype)
    return ((x + bias) * factor).to(x.dtype)


def _power(call: Call, x: Tensor) -> Tensor:
    exponent = call.optional("FactorTensor")
    return torch.pow(x, call.number("factor", 1.0) if exponent is None else exponent)


def _matmul(call: Call) -> None:
    x, y = call.tensor("X"), call.tensor("Y")
    if (call.flag("trans_x") or call.flag("transpose_X")) and x.dim() > 1:
        x = x.transpose(-1, -2)
    if (call.flag("trans_y") or call.flag("transpose_Y")) and y.dim() > 1:
        y = y.transpose(-1, -2)
    product, alpha = torch.matmul(x, y), call.number("alpha", 1.0)
    call.put(product if alpha == 1.0 else product * alpha)


def _mul(call: Call) -> None:
    """A product of matrices that are made by joining leading and trailing dims."""
    x, y = call.tensor("X"), call.tensor("Y")
    rows, inner = call.integer("x_num_col_dims", 1), call.integer("y_num_col_dims", 1)
    left = x.reshape(math.prod(x.shape[:rows]), -1)
    right = y.reshape(math.prod(y.shape[:inner]), -1)
    call.put((left @ right).reshape([*x.shape[:rows], *y.shape[inner:]]))


def _dot(call: Call) -> None:
    call.put((call.tensor("X") * call.tensor("Y")).sum(-1))


def _bmm(call: Call) -> None:
    call.put(torch.bmm(call.tensor("X"), call.tensor("Y")))


def _sum(call: Call) -> None:
    call.put(reduce(torch.add, call.tensors()))


_ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise_add": torch.add,
    "elementwise_sub": torch.sub,
    "elementwise_mul": torch.mul,
    "elementwise_div": _divide,
    "elementwise_max": torch.maximum,
    "elementwise_min": torch.minimum,
    "elementwise_pow": torch.pow,
    "elementwise_mod": torch.remainder,
    "elementwise_floordiv": torch.floor_divide,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less_than": torch.lt,
    "less_equal": torch.le,
    "greater_than": torch.gt,
    "greater_equal": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}

TABLE: Table = {
    **{name: _elementwise(function) for name, function in _ELEMENTWISE.items()},
    "bmm": _bmm,
    "dot": _dot,
    "logical_not": one_tensor(torch.logical_not),
    "matmul": _matmul,
    "matmul_v2": _matmul,
    "mul": _mul,
    "pow": with_attributes(_power),
    "scale": with_attributes(_scale),
    "sum": _sum,
}
