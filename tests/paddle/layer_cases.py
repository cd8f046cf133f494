"""Convolutions, pooling, normalisation, resizing."""

from __future__ import annotations

import numpy as np
from tests.paddle.op_case import Case

_rng = np.random.default_rng(3)


def _floats(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return _rng.uniform(low, high, shape).astype("float32")


_image = _floats(2, 4, 9, 8)
_last = _floats(2, 9, 8, 4)
_PADS = {
    "even": {"paddings": [1, 2], "padding_algorithm": "EXPLICIT"},
    "uneven": {"paddings": [0, 1, 2, 1], "padding_algorithm": "EXPLICIT"},
    "same": {"paddings": [0, 0], "padding_algorithm": "SAME"},
    "valid": {"paddings": [0, 0], "padding_algorithm": "VALID"},
}


def _conv(op: str, weight: np.ndarray, name: str, x: np.ndarray = _image, **more: object) -> Case:
    attributes = {"strides": [2, 1], "dilations": [1, 1], "groups": 1, **_PADS["even"], **more}
    return Case(
        op,
        {"Input": x, "Filter": weight},
        attributes,
        {"Output": 1},
        gradients=("Input", "Filter"),
        tolerance=2e-5,
        name=name,
    )


def _convolutions() -> list[Case]:
    weight, deep = _floats(6, 4, 3, 3), _floats(4, 1, 3, 3)
    back, back_deep = _floats(4, 6, 3, 3), _floats(4, 1, 3, 3)
    found = [_conv("conv2d", weight, name, **pads) for name, pads in _PADS.items()]
    found += [
        _conv("conv2d", _floats(6, 2, 3, 2), "groups", groups=2),
        _conv("conv2d", weight, "dilated", dilations=[2, 2]),
        _conv("conv2d", weight, "last", _last, data_format="NHWC"),
        _conv("depthwise_conv2d", deep, "", groups=4),
        _conv("conv2d_transpose", back, "even", output_padding=[], output_size=[]),
        _conv("conv2d_transpose", back, "uneven", **_PADS["uneven"]),
        _conv("conv2d_transpose", back, "same", **_PADS["same"]),
        _conv("conv2d_transpose", back, "more", output_padding=[1, 0]),
        _conv("conv2d_transpose", back, "size", output_size=[18, 6]),
        _conv("conv2d_transpose", _floats(4, 3, 3, 3), "groups", groups=2),
        _conv("depthwise_conv2d_transpose", back_deep, "", groups=4),
    ]
    return found


def _pool(kind: str, name: str, x: np.ndarray = _image, **more: object) -> Case:
    attributes = {
        "pooling_type": kind,
        "ksize": [3, 2],
        "strides": [2, 2],
        "paddings": [1, 0],
        "padding_algorithm": "EXPLICIT",
        "global_pooling": False,
        "adaptive": False,
        "ceil_mode": False,
        "exclusive": True,
        **more,
    }
    return Case("pool2d", {"X": x}, attributes, name=f"{kind}-{name}")


def _pools() -> list[Case]:
    found = []
    for kind in ("max", "avg"):
        found += [
            _pool(kind, "even"),
            _pool(kind, "uneven", paddings=[0, 1, 1, 1]),
            _pool(kind, "same", padding_algorithm="SAME"),
            _pool(kind, "ceil", ceil_mode=True),
            _pool(kind, "global", global_pooling=True),
            _pool(kind, "last", _last, data_format="NHWC"),
        ]
    found += [
        # Adaptive maxima are max_pool2d_with_index: pool2d's kernel does not adapt for them.
        _pool("avg", "adaptive", adaptive=True, ksize=[3, 4], paddings=[0, 0]),
        _pool("avg", "inclusive", exclusive=False),
        _pool("avg", "uneven-inclusive", exclusive=False, paddings=[0, 1, 1, 1]),
        Case(
            "max_pool2d_with_index",
            {"X": _image},
            {"ksize": [2, 2], "strides": [2, 2], "paddings": [0, 0]},
            {"Out": 1, "Mask": 1},
        ),
        Case(
            "max_pool2d_with_index",
            {"X": _image},
            {"ksize": [3, 4], "strides": [1, 1], "paddings": [0, 0], "adaptive": True},
            {"Out": 1, "Mask": 1},
            name="adaptive",
        ),
    ]
    return found


def _batch_norm(name: str, x: np.ndarray, **more: object) -> Case:
    channels = x.shape[-1] if more.get("data_layout") == "NHWC" else x.shape[1]
    inputs = {
        "X": x,
        "Scale": _floats(channels, low=0.5),
        "Bias": _floats(channels),
        "Mean": _floats(channels),
        "Variance": _floats(channels, low=0.5),
    }
    attributes = {"epsilon": 1e-5, "momentum": 0.8, "is_test": False, "data_layout": "NCHW"}
    testing = bool(more.get("is_test") or more.get("use_global_stats"))
    return Case(
        "batch_norm",
        inputs,
        {**attributes, **more},
        {"Y": 1, "MeanOut": 1, "VarianceOut": 1},
        ("SavedMean", "SavedVariance", "ReserveSpace"),
        in_place={"MeanOut": "Mean", "VarianceOut": "Variance"},
        gradients=() if testing else ("X", "Scale", "Bias"),
        tolerance=5e-5,
        name=name,
    )


def _norm(op: str, x: np.ndarray, size: int, name: str = "", **attributes: object) -> Case:
    inputs = {"X": x, "Scale": _floats(size, low=0.5), "Bias": _floats(size)}
    hidden = ("SavedMean", "SavedVariance") if op == "instance_norm" else ("Mean", "Variance")
    return Case(
        op,
        inputs,
        {"epsilon": 1e-5, **attributes},
        {"Y": 1},
        hidden,
        gradients=("X", "Scale", "Bias"),
        tolerance=5e-5,
        name=name,
    )


def _norms() -> list[Case]:
    counts = _floats(4, low=5, high=9)
    return [
        _batch_norm("images", _image),
        _batch_norm("rows", _floats(6, 4)),
        _batch_norm("last", _last, data_layout="NHWC"),
        _batch_norm("test", _image, is_test=True),
        _batch_norm("global", _image, use_global_stats=True),
        _norm("layer_norm", _floats(3, 4, 5), 20, begin_norm_axis=1),
        _norm("layer_norm", _floats(3, 4, 5), 5, "rows", begin_norm_axis=2),
        _norm("group_norm", _image, 4, groups=2, data_layout="NCHW"),
        _norm("instance_norm", _image, 4),
        Case(
            "affine_channel",
            {"X": _image, "Scale": _floats(4), "Bias": _floats(4)},
            {"data_layout": "NCHW"},
            gradients=("X", "Scale", "Bias"),
        ),
        Case(
            "data_norm",
            {
                "X": _floats(5, 4),
                "BatchSize": counts,
                "BatchSum": _floats(4),
                "BatchSquareSum": counts * 2,
            },
            {"epsilon": 1e-4},
            {"Y": 1, "Means": 1, "Scales": 1},
            gradients=(),
        ),
    ]


def _drops() -> list[Case]:
    found = []
    for kind in ("upscale_in_train", "downgrade_in_infer"):
        for name, more in {"test": {"is_test": True}, "none": {"dropout_prob": 0.0}}.items():
            attributes = {"dropout_prob": 0.4, "dropout_implementation": kind, **more}
            found.append(
                Case(
                    "dropout",
                    {"X": _image},
                    attributes,
                    hidden=("Mask",),
                    gradients=(),
                    name=f"{kind}-{name}",
                )
            )
    return found


_SPATIAL = {"linear": 1, "bilinear": 2, "nearest": 2, "bicubic": 2, "trilinear": 3}


def _resizes() -> list[Case]:
    found = []
    for method, dims in _SPATIAL.items():
        x = _floats(2, 3, *[4, 5, 6][:dims])
        sizes = {"out_d": -1, "out_h": -1, "out_w": -1}
        names = ["out_d", "out_h", "out_w"][3 - dims :]
        sizes.update(zip(names, [7, 3, 11][:dims], strict=True))
        for corners in (False, True):
            for mode in (0, 1):
                attributes = {
                    **sizes,
                    "interp_method": method,
                    "align_corners": corners,
                    "align_mode": mode,
                    "scale": [],
                    "data_layout": "NCHW",
                }
                name = f"{corners:d}{mode}"
                found.append(
                    Case(f"{method}_interp_v2", {"X": x}, attributes, tolerance=5e-5, name=name)
                )
        scaled = {**attributes, "scale": [1.7] * dims, "align_corners": False, "align_mode": 1}
        found.append(Case(f"{method}_interp_v2", {"X": x}, scaled, tolerance=5e-5, name="scaled"))
    return found


CASES = [*_convolutions(), *_pools(), *_norms(), *_drops(), *_resizes()]
