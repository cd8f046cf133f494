"""Losses and boxes."""

from __future__ import annotations

import numpy as np
from tests.paddle.op_case import Case

_rng = np.random.default_rng(5)


def _floats(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return _rng.uniform(low, high, shape).astype("float32")


def _shares(*shape: int, axis: int = -1) -> np.ndarray:
    raw = np.exp(_rng.uniform(-1, 1, shape))
    return (raw / raw.sum(axis, keepdims=True)).astype("float32")


_logits, _labels = _floats(6, 5), _rng.integers(0, 5, (6, 1))
_ignoring = np.where(np.arange(6)[:, None] == 2, -100, _labels)


def _cross_entropy(name: str, logits: np.ndarray, label: np.ndarray, **more: object) -> Case:
    attributes = {"axis": -1, "ignore_index": -100, "soft_label": False, "use_softmax": True}
    return Case(
        "softmax_with_cross_entropy",
        {"Logits": logits, "Label": label},
        {**attributes, **more},
        {"Loss": 1},
        ("Softmax",),
        gradients=("Logits",),
        name=name,
    )


_box = {
    "anchors": [10, 13, 16, 30],
    "class_num": 3,
    "conf_thresh": 0.3,
    "downsample_ratio": 8,
    "clip_bbox": True,
    "scale_x_y": 1.1,
}

CASES = [
    _cross_entropy("labels", _logits, _labels),
    _cross_entropy("ignored", _logits, _ignoring),
    _cross_entropy("axis", _floats(2, 5, 3), _rng.integers(0, 5, (2, 1, 3)), axis=1),
    _cross_entropy("soft", _logits, _shares(6, 5), soft_label=True),
    Case(
        "cross_entropy2",
        {"X": _shares(6, 5), "Label": _labels},
        {"ignore_index": -100},
        {"Y": 1},
        ("XShape", "MatchX"),
    ),
    Case("cross_entropy", {"X": _shares(6, 5), "Label": _labels}, {"ignore_index": -100}, {"Y": 1}),
    Case("bce_loss", {"X": _shares(4, 3), "Label": _shares(4, 3)}),
    Case(
        "sigmoid_cross_entropy_with_logits",
        {"X": _logits, "Label": _shares(6, 5)},
        {"normalize": False, "ignore_index": -100},
    ),
    Case(
        "sigmoid_cross_entropy_with_logits",
        {"X": _logits, "Label": np.where(_shares(6, 5) > 0.2, 1, -100).astype("float32")},
        {"normalize": True, "ignore_index": -100},
        name="normalised",
    ),
    *(
        Case(
            "kldiv_loss",
            {"X": np.log(_shares(4, 5)), "Target": _shares(4, 5)},
            {"reduction": reduction},
            {"Loss": 1},
            name=reduction,
        )
        for reduction in ("none", "sum", "mean", "batchmean")
    ),
    Case(
        "huber_loss",
        {"X": _floats(6, 1), "Y": _floats(6, 1)},
        {"delta": 0.8},
        {"Out": 1},
        ("Residual",),
        gradients=("X", "Y"),
    ),
    Case(
        "rank_loss",
        {
            "Label": _rng.integers(0, 2, (6, 1)).astype("float32"),
            "Left": _floats(6, 1),
            "Right": _floats(6, 1),
        },
        gradients=("Left", "Right"),
    ),
    *(Case("identity_loss", {"X": _logits}, {"reduction": n}, name=str(n)) for n in range(3)),
    Case(
        "warpctc",
        {
            "Logits": _floats(6, 2, 5),
            "Label": _rng.integers(1, 5, (2, 3)).astype("int32"),
            "LogitsLength": np.int64([6, 5]),
            "LabelLength": np.int64([3, 2]),
        },
        {"blank": 0, "norm_by_times": False},
        {"Loss": 1},
        ("WarpCTCGrad",),
        gradients=("Logits",),
    ),
    Case(
        "yolo_box",
        {"X": _floats(2, 16, 3, 4), "ImgSize": np.int32([[60, 70], [48, 50]])},
        _box,
        {"Boxes": 1, "Scores": 1},
        gradients=(),
    ),
    Case(
        "print",
        {"In": _logits},
        {
            "message": "values",
            "print_phase": "FORWARD",
            "first_n": -1,
            "summarize": 20,
            "print_tensor_name": True,
            "print_tensor_type": True,
            "print_tensor_shape": True,
            "print_tensor_lod": True,
            "print_tensor_layout": True,
        },
        gradients=(),
    ),
]
