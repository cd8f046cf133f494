"""Functions of one tensor."""

from __future__ import annotations

import numpy as np
from tests.paddle.op_case import Case

_rng = np.random.default_rng(1)
_signed = _rng.uniform(-3, 3, (2, 3, 4)).astype("float32")
_unit = _rng.uniform(-0.9, 0.9, (2, 3, 4)).astype("float32")
_positive = _rng.uniform(0.1, 3, (2, 3, 4)).astype("float32")
_image = _rng.uniform(-3, 3, (2, 3, 4, 5)).astype("float32")
_halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.2, -0.7], dtype="float32")

_ANYWHERE = (
    *("abs", "atan", "ceil", "cos", "cosh", "erf", "exp", "floor", "logsigmoid", "mish", "relu"),
    *("sigmoid", "sign", "silu", "sin", "sinh", "softsign", "square", "tan", "tanh"),
    *("tanh_shrink", "asinh", "expm1"),
)
_POSITIVE = ["log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"]
_UNIT = ["acos", "asin"]
_ATTRIBUTES = {
    "celu": {"alpha": 0.7},
    "brelu": {"t_min": -1.0, "t_max": 2.0},
    "elu": {"alpha": 0.7},
    "hard_shrink": {"threshold": 0.6},
    "hard_sigmoid": {"slope": 0.3, "offset": 0.4},
    "hard_swish": {"threshold": 6.0, "scale": 6.0, "offset": 3.0},
    "leaky_relu": {"alpha": 0.1},
    "log_softmax": {"axis": 1},
    "relu6": {"threshold": 6.0},
    "selu": {},
    "softmax": {"axis": 1},
    "softplus": {"beta": 1.5, "threshold": 3.0},
    "softshrink": {"lambda": 0.4},
    "swish": {"beta": 1.0},
    "thresholded_relu": {"threshold": 0.8},
}


def _prelu(mode: str, shape: tuple[int, ...], layout: str = "NCHW") -> Case:
    alpha = _rng.uniform(0.05, 0.5, shape).astype("float32")
    return Case(
        "prelu",
        {"X": _image, "Alpha": alpha},
        {"mode": mode, "data_format": layout},
        gradients=("X", "Alpha"),
        name=f"{mode}-{layout}",
    )


CASES = [
    *(Case(name, {"X": _signed}) for name in _ANYWHERE),
    *(Case(name, {"X": _positive}) for name in _POSITIVE),
    *(Case(name, {"X": _unit}) for name in _UNIT),
    *(Case(name, {"X": _signed}, attributes) for name, attributes in _ATTRIBUTES.items()),
    Case("gelu", {"X": _signed}, {"approximate": False}, name="exact"),
    Case("gelu", {"X": _signed}, {"approximate": True}, name="tanh"),
    Case("relu6", {"X": 3 * _signed}, {"threshold": 6.0}, name="above"),
    Case("acosh", {"X": 1 + _positive}),
    Case("atanh", {"X": _unit}),
    Case("round", {"X": _halves}),
    Case("softplus", {"X": _signed}, {"beta": 1.0, "threshold": 20.0}, name="default"),
    Case("clip", {"X": _signed}, {"min": -1.0, "max": 1.5}),
    Case("clip", {"X": (9 * _signed).astype("int32")}, {"min": -1.5, "max": 3.4}, name="integers"),
    Case("clip", {"X": _signed}, {"min": 0.1, "max": 3.4028234663852886e38}, name="one-bound"),
    Case(
        "clip",
        {"X": _signed, "Min": np.float32([-1.0]), "Max": np.float32([1.5])},
        {"min": 0.0, "max": 0.0},
        name="tensors",
    ),
    _prelu("all", (1,)),
    _prelu("channel", (1, 3, 1, 1)),
    _prelu("channel", (1, 1, 1, 5), "NHWC"),
    _prelu("element", (1, 3, 4, 5)),
]
