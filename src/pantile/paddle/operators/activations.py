"""Functions of one tensor, element by element."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from pantile.paddle.call import Call, Table, Tensor, one_tensor, with_attributes


def _round_half_away(x: Tensor) -> Tensor:
    """Paddle rounds 0.5 to 1 and -0.5 to -1; torch would round both to 0."""
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.clamp(x * call.number("slope", 0.2) + call.number("offset", 0.5), 0.0, 1.0)


def _hard_swish(call: Call, x: Tensor) -> Tensor:
    gate = torch.clamp(x + call.number("offset", 3.0), 0.0, call.number("threshold", 6.0))
    return x * gate / call.number("scale", 6.0)


def _selu(call: Call, x: Tensor) -> Tensor:
    scale = call.number("scale", 1.0507009873554804934193349852946)
    alpha = call.number("alpha", 1.6732632423543772848170429916717)
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x))


def _softplus(call: Call, x: Tensor) -> Tensor:
    return F.softplus(x, call.number("beta", 1.0), call.number("threshold", 20.0))


def _thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return torch.where(x > call.number("threshold", 1.0), x, torch.zeros_like(x))


def _prelu(call: Call) -> None:
    x, alpha, mode = call.tensor(), call.tensor("Alpha"), call.text("mode", "all")
    if mode == "all":
        alpha = alpha.reshape(())
    elif mode == "channel":
        last = call.text("data_format", "NCHW") == "NHWC"
        alpha = alpha.reshape(-1) if last else alpha.reshape([1, -1] + [1] * (x.dim() - 2))
    else:  # element: one slope for each element of a sample
        alpha = alpha.reshape([1, *x.shape[1:]])
    call.put(torch.where(x > 0, x, alpha * x))


def _clip(call: Call) -> None:
    x = call.tensor()
    low = call.optional("Min")
    high = call.optional("Max")
    if low is None and high is None:
        call.put(torch.clamp(x, _bound(call, "min", x.dtype), _bound(call, "max", x.dtype)))
        return
    if low is None:
        low = torch.full((), _bound(call, "min", x.dtype), dtype=x.dtype)
    if high is None:
        high = torch.full((), _bound(call, "max", x.dtype), dtype=x.dtype)
    call.put(torch.minimum(torch.maximum(x, low.to(x.dtype)), high.to(x.dtype)))


def _bound(call: Call, name: str, dtype: torch.dtype) -> float:
    """A bound as a number of the type: an integer for integers, infinite where it does not fit."""
    value = call.number(name)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return int(min(max(value, limits.min), limits.max))
    return value if abs(value) <= torch.finfo(dtype).max else math.copysign(math.inf, value)


_PLAIN = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "relu6": F.relu6,  # Paddle's kernel does not look at its threshold either
    "round": _round_half_away,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tanh_shrink": F.tanhshrink,
}
_WITH_ATTRIBUTES = {
    "brelu": lambda c, x: torch.clamp(x, c.number("t_min", 0.0), c.number("t_max", 24.0)),
    "celu": lambda c, x: F.celu(x, c.number("alpha", 1.0)),
    "elu": lambda c, x: F.elu(x, c.number("alpha", 1.0)),
    "gelu": lambda c, x: F.gelu(x, approximate="tanh" if c.flag("approximate") else "none"),
    "hard_shrink": lambda c, x: F.hardshrink(x, c.number("threshold", 0.5)),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "leaky_relu": lambda c, x: F.leaky_relu(x, c.number("alpha", 0.02)),
    "log_softmax": lambda c, x: F.log_softmax(x, c.integer("axis", -1)),
    "selu": _selu,
    "softmax": lambda c, x: F.softmax(x, c.integer("axis", -1)),
    "softplus": _softplus,
    "softshrink": lambda c, x: F.softshrink(x, c.number("lambda", 0.5)),
    "swish": lambda c, x: x * torch.sigmoid(c.number("beta", 1.0) * x),
    "thresholded_relu": _thresholded_relu,
}

TABLE: Table = {
    **{name: one_tensor(function) for name, function in _PLAIN.items()},
    **{name: with_attributes(function) for name, function in _WITH_ATTRIBUTES.items()},
    "clip": _clip,
    "prelu": _prelu,
}
