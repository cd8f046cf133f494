"""Operators that move elements, make constants and look up."""

from __future__ import annotations

import numpy as np
from tests.paddle.op_case import Case

_rng = np.random.default_rng(4)


def _floats(*shape: int) -> np.ndarray:
    return _rng.uniform(-1, 1, shape).astype("float32")


_x = _floats(2, 3, 4)
_shaped = ("XShape",)


def _slice(op: str, x: np.ndarray, name: str, **attributes: object) -> Case:
    attributes = {"infer_flags": [1] * 3, "decrease_axis": [], **attributes}
    return Case(op, {"Input": x}, attributes, gradients=("Input",), name=name)


def _slices() -> list[Case]:
    return [
        _slice("slice", _x, "middle", axes=[1, 2], starts=[1, -3], ends=[3, 1000]),
        _slice("slice", _x, "drop", axes=[1], starts=[1], ends=[2], decrease_axis=[1]),
        _slice(
            "strided_slice", _x, "forward", axes=[1, 2], starts=[0, 1], ends=[3, 4], strides=[2, 2]
        ),
        _slice("strided_slice", _x, "back", axes=[2], starts=[3], ends=[0], strides=[-2]),
        *(
            _slice("strided_slice", _x, f"to{end}", axes=[2], starts=[-1], ends=[end], strides=[-1])
            for end in (-1, -4, -100, 1)
        ),
    ]


def _pads() -> list[Case]:
    volume, pads = _floats(2, 3, 4, 4, 5), [1, 2, 2, 1, 0, 3]
    found = [
        Case("pad3d", {"X": volume}, {"paddings": pads, "mode": mode, "value": 0.5}, name=mode)
        for mode in ("constant", "reflect", "replicate", "circular")
    ]
    last = {"paddings": pads, "mode": "constant", "value": 0.0, "data_format": "NDHWC"}
    return [*found, Case("pad3d", {"X": volume}, last, name="last")]


def _constants() -> list[Case]:
    found = [
        Case("fill_constant", {}, {"shape": [2, 3], "value": 1.5, "dtype": 5}, gradients=()),
        Case(
            "fill_constant",
            {},
            {"shape": [2], "value": 0.0, "str_value": "7", "dtype": 3},
            gradients=(),
            name="int64",
        ),
        Case("fill_any_like", {"X": _x}, {"value": 2.0, "dtype": -1}, gradients=()),
        Case("fill_any_like", {"X": _x}, {"value": 1.0, "dtype": 2}, gradients=(), name="int32"),
        Case(
            "assign_value",
            {},
            {"shape": [2, 2], "dtype": 5, "fp32_values": [1.0, 2.0, 3.0, 4.5]},
            gradients=(),
        ),
        Case(
            "assign_value",
            {},
            {"shape": [3], "dtype": 3, "int64_values": [1, -2, 3]},
            gradients=(),
            name="int64",
        ),
        Case("shape", {"Input": _x}, gradients=()),
        Case("size", {"Input": _x}, gradients=()),
    ]
    return found


def _lookups() -> list[Case]:
    table, ids = _floats(7, 5), _rng.integers(0, 7, (2, 4))
    return [
        Case("lookup_table_v2", {"W": table, "Ids": ids}, {"padding_idx": -1}, gradients=("W",)),
        Case(
            "lookup_table_v2",
            {"W": table, "Ids": ids},
            {"padding_idx": int(ids[0, 0])},
            gradients=("W",),
            name="padding",
        ),
        Case(
            "lookup_table",
            {"W": table, "Ids": ids.reshape(2, 4, 1)},
            {"padding_idx": -1},
            gradients=("W",),
        ),
        Case("one_hot_v2", {"X": ids}, {"depth": 7, "dtype": 5}, gradients=()),
        Case("gather", {"X": table, "Index": ids[0]}, {"axis": 0}),
        # Paddle 2.6.2 computes a wrong gradient when the axis is an attribute.
        Case(
            "gather", {"X": _x, "Index": np.int64([2, 0])}, {"axis": 1}, gradients=(), name="axis"
        ),
        Case("where", {"Condition": _x > 0, "X": _x, "Y": _x * 2}, gradients=("X", "Y")),
        Case("gather_nd", {"X": _x, "Index": np.int64([[0, 1], [1, 2]])}),
        Case("index_select", {"X": _x, "Index": np.int64([2, 0])}, {"dim": 1}),
    ]


CASES = [
    Case("reshape2", {"X": _x}, {"shape": [0, -1]}, hidden=_shaped),
    Case("transpose2", {"X": _x}, {"axis": [2, 0, 1]}, hidden=_shaped),
    Case("flatten2", {"X": _x}, {"axis": 2}, hidden=_shaped),
    Case("flatten_contiguous_range", {"X": _x}, {"start_axis": 1, "stop_axis": 2}, hidden=_shaped),
    Case("squeeze2", {"X": _floats(2, 1, 3, 1)}, {"axes": [1]}, hidden=_shaped),
    Case("squeeze2", {"X": _floats(2, 1, 3, 1)}, {"axes": []}, hidden=_shaped, name="all"),
    Case("unsqueeze2", {"X": _x}, {"axes": [0, 3]}, hidden=_shaped),
    Case("concat", {"X": [_x, _floats(2, 1, 4)]}, {"axis": 1}),
    Case("stack", {"X": [_x, _floats(2, 3, 4)]}, {"axis": 1}, {"Y": 1}),
    Case("unstack", {"X": _x}, {"axis": 1, "num": 3}, {"Y": 3}),
    Case("split", {"X": _x}, {"axis": 2, "num": 2}, {"Out": 2}),
    Case("split", {"X": _x}, {"axis": 2, "sections": [1, -1], "num": 0}, {"Out": 2}, name="sizes"),
    *_slices(),
    Case("expand_v2", {"X": _floats(3, 1)}, {"shape": [2, 3, 4]}),
    Case("expand_v2", {"X": _floats(3, 1)}, {"shape": [2, -1, 4]}, gradients=(), name="keep"),
    Case("expand_as_v2", {"X": _floats(3, 1), "Y": _x}, {"target_shape": [2, 3, 4]}),
    Case("expand", {"X": _floats(3, 1)}, {"expand_times": [2, 4]}),
    Case("tile", {"X": _floats(3, 2)}, {"repeat_times": [2, 1, 3]}),
    Case("flip", {"X": _x}, {"axis": [0, 2]}),
    Case("meshgrid", {"X": [_floats(2), _floats(3)]}, {}, {"Out": 2}),
    Case("assign", {"X": _x}),
    Case("pad", {"X": _floats(2, 3)}, {"paddings": [0, 1, 2, 0], "pad_value": 0.5}),
    Case("increment", {"X": np.float32([1.5])}, {"step": 2.0}, gradients=()),
    Case("fill_zeros_like", {"X": _x}, gradients=()),
    Case(
        "fill_constant_batch_size_like",
        {"Input": _x},
        {"shape": [-1, 5], "value": 1.5, "dtype": 5, "input_dim_idx": 0, "output_dim_idx": 0},
        gradients=(),
    ),
    Case("share_data", {"X": _x}, gradients=()),
    Case("cast", {"X": _x}, {"in_dtype": 5, "out_dtype": 6}, gradients=()),
    Case("cast", {"X": _x * 5}, {"in_dtype": 5, "out_dtype": 2}, gradients=(), name="int32"),
    Case("tril_triu", {"X": _floats(4, 4)}, {"diagonal": 1, "lower": True}),
    *_pads(),
    *_constants(),
    *_lookups(),
]
