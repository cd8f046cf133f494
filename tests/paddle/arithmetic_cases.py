"""Two tensors, products, reductions, sorting."""

from __future__ import annotations

import numpy as np
from tests.paddle.op_case import Case

_rng = np.random.default_rng(2)


def _floats(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return _rng.uniform(low, high, shape).astype("float32")


_x, _y = _floats(2, 3, 4), _floats(2, 3, 4)
_positive = _floats(2, 3, 4, low=0.3)
_ints, _divisors = _rng.integers(-9, 9, (3, 4)), _rng.integers(1, 5, (3, 4))
_flags, _others = _rng.integers(0, 2, (3, 4)) > 0, _rng.integers(0, 2, (3, 4)) > 0
_both = ("X", "Y")

_ELEMENTWISE = ["add", "sub", "mul", "div", "max", "min"]
_COMPARISONS = ["equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"]
_REDUCTIONS = ["reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum"]


def _two(op: str, x: np.ndarray, y: np.ndarray, name: str = "", **attributes: object) -> Case:
    kept = _both if x.dtype.kind == "f" else ()
    return Case(op, {"X": x, "Y": y}, attributes, gradients=kept, name=name)


def _matmuls() -> list[Case]:
    found = []
    for transpose_x in (False, True):
        for transpose_y in (False, True):
            x = _floats(2, 4, 3) if transpose_x else _floats(2, 3, 4)
            y = _floats(2, 5, 4) if transpose_y else _floats(2, 4, 5)
            name = f"{transpose_x:d}{transpose_y:d}"
            found.append(_two("matmul_v2", x, y, name, trans_x=transpose_x, trans_y=transpose_y))
            found.append(
                _two(
                    "matmul",
                    x,
                    y,
                    name,
                    transpose_X=transpose_x,
                    transpose_Y=transpose_y,
                    alpha=0.5,
                )
            )
    return found


def _reductions() -> list[Case]:
    found = []
    for op in _REDUCTIONS:
        found.append(Case(op, {"X": _x}, {"dim": [1], "keep_dim": False}, name="one"))
        found.append(Case(op, {"X": _x}, {"dim": [0, 2], "keep_dim": True}, name="two"))
        found.append(Case(op, {"X": _x}, {"dim": [0], "reduce_all": True}, name="all"))
    for op in ("reduce_all", "reduce_any"):
        found.append(Case(op, {"X": _flags}, {"dim": [1]}, gradients=()))
        found.append(
            Case(op, {"X": _flags}, {"dim": [0], "reduce_all": True}, gradients=(), name="all")
        )
    return found


def _sorted_cases() -> list[Case]:
    indices = {"Out": 1, "Indices": 1}
    found = [
        Case("argsort", {"X": _x}, {"axis": 1, "descending": down}, indices, name=str(down))
        for down in (False, True)
    ]
    for largest in (False, True):
        attributes = {"k": 2, "axis": 1, "largest": largest, "sorted": True}
        found.append(Case("top_k_v2", {"X": _x}, attributes, indices, name=str(largest)))
    found.append(Case("top_k", {"X": _x}, {"k": 3}, indices))
    for op in ("arg_max", "arg_min"):
        found.append(Case(op, {"X": _x}, {"axis": 1, "dtype": 3}, gradients=()))
        keeping = {"axis": -1, "keepdims": True, "dtype": 2}
        found.append(Case(op, {"X": _x}, keeping, gradients=(), name="keep-int32"))
        flat = {"axis": 0, "flatten": True, "dtype": 3}
        found.append(Case(op, {"X": _x}, flat, gradients=(), name="flat"))
    return found


def _cumsums() -> list[Case]:
    return [
        Case("cumsum", {"X": _x}, {"axis": 1}),
        Case("cumsum", {"X": _x}, {"axis": 1, "reverse": True}, name="reverse"),
        Case("cumsum", {"X": _x}, {"axis": 2, "exclusive": True}, name="exclusive"),
        Case(
            "cumsum",
            {"X": _x},
            {"axis": 0, "exclusive": True, "reverse": True},
            name="reverse-exclusive",
        ),
        Case("cumsum", {"X": _x}, {"flatten": True}, name="flat"),
    ]


CASES = [
    *(_two(f"elementwise_{op}", _x, _y) for op in _ELEMENTWISE),
    *(_two(f"elementwise_{op}", _x, _floats(3), "axis", axis=1) for op in ("add", "mul")),
    *(_two(f"elementwise_{op}", _x, _floats(3, 4), "tail") for op in ("add", "sub", "div")),
    _two("elementwise_sub", _x, _floats(2), "axis0", axis=0),
    _two("elementwise_pow", _positive, _y),
    _two("elementwise_mod", _ints, _divisors, "integers"),
    _two("elementwise_div", _ints, _divisors, "integers"),
    Case("elementwise_mod", {"X": _x, "Y": _positive}, gradients=(), name="floats"),
    *(_two(op, _ints, _divisors) for op in _COMPARISONS),
    *(_two(op, _flags, _others) for op in ("logical_and", "logical_or", "logical_xor")),
    Case("logical_not", {"X": _flags}, gradients=()),
    *_matmuls(),
    _two("matmul_v2", _floats(4), _floats(4), "vectors"),
    _two("mul", _floats(2, 3, 4), _floats(12, 5), x_num_col_dims=1, y_num_col_dims=1),
    _two("mul", _floats(2, 3, 4), _floats(4, 5), "rows", x_num_col_dims=2, y_num_col_dims=1),
    _two("bmm", _floats(2, 3, 4), _floats(2, 4, 5)),
    _two("dot", _floats(2, 4), _floats(2, 4)),
    Case("sum", {"X": [_x, _y, _positive]}),
    Case("scale", {"X": _x}, {"scale": 1.5, "bias": 0.5, "bias_after_scale": True}),
    Case("scale", {"X": _x}, {"scale": 1.5, "bias": 0.5, "bias_after_scale": False}, name="before"),
    Case("scale", {"X": _ints}, {"scale": 3.0, "bias": 1.0}, gradients=(), name="integers"),
    Case("scale", {"X": _x, "ScaleTensor": np.float32([2.5])}, {"bias": 1.0}, name="tensor"),
    Case("pow", {"X": _positive}, {"factor": 2.5}),
    Case("mean", {"X": _x}),
    Case("p_norm", {"X": _x}, {"porder": 2.0, "axis": 1, "keepdim": False}),
    Case("p_norm", {"X": _x}, {"porder": 3.0, "axis": 2, "keepdim": True}, name="cubes"),
    Case("p_norm", {"X": _x}, {"porder": 2.0, "asvector": True}, name="vector"),
    _two("dist", _x, _y, p=2.0),
    _two("dist", _x, _y, "absolute", p=1.0),
    Case("logsumexp", {"X": _x}, {"axis": [1], "keepdim": False}),
    Case("logsumexp", {"X": _x}, {"axis": [0], "reduce_all": True}, name="all"),
    Case("squared_l2_norm", {"X": _x}),
    _two("elementwise_floordiv", abs(_ints), _divisors),
    Case("clip_by_norm", {"X": _x}, {"max_norm": 0.7}, gradients=()),
    *_reductions(),
    *_sorted_cases(),
    *_cumsums(),
]
