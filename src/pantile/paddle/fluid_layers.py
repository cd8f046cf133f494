"""Functions of `paddle.fluid.layers` whose arguments or results differ from today's of that name.

Where today's wheel still has the operator of that time, it is appended as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pantile.paddle.fluid_operators import activated, append_operator

Layer = Callable[..., Any]

_SAME = """
abs acos asin atan ceil cos cosh erf exp floor log log10 log1p log2 reciprocal round rsqrt sign sin
sinh sqrt square tan tanh equal greater_equal greater_than less_equal less_than not_equal
logical_and logical_not logical_or logical_xor concat gather increment matmul ones scale shape slice
split stack strided_slice transpose unstack where zeros zeros_like ones_like
"""
_FUNCTIONAL = """
elu gelu hardsigmoid hardswish leaky_relu log_softmax mish prelu relu relu6 selu sigmoid softplus
softsign swish
"""


def unchanged(paddle: Any) -> dict[str, Layer]:
    """Functions that are called as they were."""
    functional = paddle.nn.functional
    return {
        **{name: getattr(paddle, name) for name in _SAME.split()},
        **{name: getattr(functional, name) for name in _FUNCTIONAL.split()},
        "hard_sigmoid": functional.hardsigmoid,
        "hard_swish": functional.hardswish,
        "logsigmoid": functional.log_sigmoid,
    }


def arithmetic(paddle: Any) -> dict[str, Layer]:
    """`elementwise_*`: y is aligned at `axis`, and its type need not be that of x."""
    functions = {
        "elementwise_add": paddle.add,
        "elementwise_sub": paddle.subtract,
        "elementwise_mul": paddle.multiply,
        "elementwise_div": paddle.divide,
        "elementwise_max": paddle.maximum,
        "elementwise_min": paddle.minimum,
        "elementwise_mod": paddle.remainder,
        "elementwise_pow": paddle.pow,
    }
    return {kind: _binary(paddle, kind, function) for kind, function in functions.items()}


def _binary(paddle: Any, kind: str, function: Layer) -> Layer:
    def binary(x: Any, y: Any, axis: int = -1, act: str | None = None, name: Any = None) -> Any:
        if not paddle.in_dynamic_mode():
            # Appended as it was: today's functions refuse a half beside a single, which
            # PaddleNLP's BERT for the IPU has in its attention masks.
            result = append_operator(paddle, kind, {"X": x, "Y": y}, {"axis": axis}, x.dtype)
        else:
            if axis != -1 and len(y.shape) < len(x.shape):
                y = y.reshape([*y.shape, *[1] * (len(x.shape) - axis - len(y.shape))])
            result = function(x, y)
        return activated(paddle, result, act)

    return binary


def changed(paddle: Any) -> dict[str, Layer]:
    """Functions that are called as they were, by way of today's."""
    return {**_shaping(paddle), **_computing(paddle), **_looking_up(paddle)}


def _shaping(paddle: Any) -> dict[str, Layer]:
    def expand(x: Any, expand_times: Any, name: Any = None) -> Any:
        return paddle.tile(x, expand_times)

    def flatten(x: Any, axis: int = 1, name: Any = None) -> Any:
        rows = 1
        for size in x.shape[:axis]:
            rows *= size
        return paddle.reshape(x, [rows if rows >= 0 else -1, -1 if rows >= 0 else _rest(x, axis)])

    def reshape(
        x: Any, shape: Any, actual_shape: Any = None, act: Any = None, *_: Any, **__: Any
    ) -> Any:
        return activated(paddle, paddle.reshape(x, shape), act)

    def squeeze(input: Any, axes: Sequence[int], name: Any = None) -> Any:
        return paddle.squeeze(input, axis=list(axes) or None)

    def unsqueeze(input: Any, axes: Any, name: Any = None) -> Any:
        return paddle.unsqueeze(input, axis=axes)

    return {
        "expand": expand,
        "flatten": flatten,
        "reshape": reshape,
        "squeeze": squeeze,
        "unsqueeze": unsqueeze,
    }


def _rest(x: Any, axis: int) -> int:
    size = 1
    for one in x.shape[axis:]:
        size *= one
    return int(size)


def _computing(paddle: Any) -> dict[str, Layer]:
    def clip(x: Any, min: float, max: float, name: Any = None) -> Any:
        return paddle.clip(x, min, max)

    def cumsum(
        x: Any,
        axis: int | None = None,
        exclusive: bool | None = None,
        reverse: bool | None = None,
        name: Any = None,
    ) -> Any:
        attributes = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
        where = {"flatten": axis is None, "axis": -1 if axis is None else axis}
        return append_operator(paddle, "cumsum", {"X": x}, {**attributes, **where}, x.dtype)

    def power(x: Any, factor: Any = 1.0, name: Any = None) -> Any:
        return paddle.pow(x, factor)

    def summed(x: Any) -> Any:
        return paddle.add_n(x)

    def top(input: Any, k: Any, name: Any = None) -> Any:
        return paddle.topk(input, k)

    return {
        "clip": clip,
        "cumsum": cumsum,
        "pow": power,
        "sum": summed,
        "sums": summed,
        "topk": top,
    }


def _looking_up(paddle: Any) -> dict[str, Layer]:
    """Classes and rows are numbers of shape […, 1]; the results replace that last dim."""

    def embedding(
        input: Any,
        size: Sequence[int],
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: Any = None,
        dtype: str = "float32",
    ) -> Any:
        helper = paddle.base.layer_helper.LayerHelper("embedding", param_attr=param_attr)
        table = helper.create_parameter(attr=helper.param_attr, shape=list(size), dtype=dtype)
        row = (
            -1 if padding_idx is None else padding_idx % size[0] if padding_idx < 0 else padding_idx
        )
        attributes = {"is_sparse": is_sparse, "padding_idx": row}
        return append_operator(
            paddle, "lookup_table", {"Ids": input, "W": table}, attributes, dtype
        )

    def one_hot(input: Any, depth: int, allow_out_of_range: bool = False) -> Any:
        has_column = len(input.shape) > 1 and input.shape[-1] == 1
        classes = paddle.squeeze(input, axis=[-1]) if has_column else input
        return paddle.nn.functional.one_hot(classes, depth)

    return {"embedding": embedding, "one_hot": one_hot}
