"""Functions of `paddle.fluid.layers` that append one operator, as they did then.

Today's functions of these names have other arguments, append other operators, or are gone; the
wheel still knows the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Layer = Callable[..., Any]


def append_operator(
    paddle: Any,
    kind: str,
    inputs: dict[str, Any],
    attributes: dict[str, Any],
    dtype: Any,
    outputs: Sequence[str] = ("Out",),
) -> Any:
    """Append an operator to the program being built; the result in the first output slot."""
    helper = paddle.base.layer_helper.LayerHelper(kind)
    made = {slot: [helper.create_variable_for_type_inference(dtype)] for slot in outputs}
    helper.append_op(type=kind, inputs=inputs, outputs=made, attrs=attributes)
    return made[outputs[0]][0]


def activated(paddle: Any, result: Any, act: str | None) -> Any:
    """The result, or what the activation of that name makes of it."""
    return result if act is None else getattr(paddle.nn.functional, act)(result)


def appended(paddle: Any) -> dict[str, Layer]:
    """Losses, activations, products and paddings of that time."""
    append = partial(append_operator, paddle)

    def brelu(x: Any, t_min: float = 0.0, t_max: float = 24.0, name: Any = None) -> Any:
        return append("brelu", {"X": x}, {"t_min": t_min, "t_max": t_max}, x.dtype)

    def mul(
        x: Any, y: Any, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: Any = None
    ) -> Any:
        attributes = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
        return append("mul", {"X": x, "Y": y}, attributes, x.dtype)

    def pad(x: Any, paddings: Any, pad_value: float = 0.0, name: Any = None) -> Any:
        attributes = {"paddings": list(paddings), "pad_value": float(pad_value)}
        return append("pad", {"X": x}, attributes, x.dtype)

    def affine_channel(
        x: Any, scale: Any = None, bias: Any = None, data_layout: str = "NCHW", act: Any = None
    ) -> Any:
        inputs = {"X": x, "Scale": scale, "Bias": bias}
        result = append("affine_channel", inputs, {"data_layout": data_layout}, x.dtype)
        return activated(paddle, result, act)

    return {
        "affine_channel": affine_channel,
        "brelu": brelu,
        "mul": mul,
        "pad": pad,
        **_losses(append),
    }


def _losses(append: Layer) -> dict[str, Layer]:
    def huber_loss(input: Any, label: Any, delta: float) -> Any:
        inputs, outputs = {"X": input, "Y": label}, ("Out", "Residual")
        return append("huber_loss", inputs, {"delta": delta}, input.dtype, outputs)

    def rank_loss(label: Any, left: Any, right: Any, name: Any = None) -> Any:
        inputs = {"Label": label, "Left": left, "Right": right}
        return append("rank_loss", inputs, {}, left.dtype)

    def sigmoid_cross_entropy_with_logits(
        x: Any, label: Any, ignore_index: int = -100, name: Any = None, normalize: bool = False
    ) -> Any:
        attributes = {"ignore_index": ignore_index, "normalize": normalize}
        inputs = {"X": x, "Label": label}
        return append("sigmoid_cross_entropy_with_logits", inputs, attributes, x.dtype)

    return {
        "huber_loss": huber_loss,
        "rank_loss": rank_loss,
        "sigmoid_cross_entropy_with_logits": sigmoid_cross_entropy_with_logits,
    }


def renamed(paddle: Any) -> dict[str, Layer]:
    """Functions that only moved, or whose arguments are called otherwise today."""
    functional, static, nn = paddle.nn.functional, paddle.static, paddle.static.nn

    def argsort(input: Any, axis: int = -1, descending: bool = False, name: Any = None) -> Any:
        places = paddle.argsort(input, axis, descending)
        return paddle.sort(input, axis, descending), places

    def softshrink(x: Any, alpha: float | None = None) -> Any:
        return functional.softshrink(x, 0.5 if alpha is None else alpha)

    def hard_shrink(x: Any, threshold: float | None = None) -> Any:
        return functional.hardshrink(x, 0.5 if threshold is None else threshold)

    def thresholded_relu(x: Any, threshold: float | None = None) -> Any:
        return functional.thresholded_relu(x, 1.0 if threshold is None else threshold)

    moved = ("conv2d_transpose", "instance_norm", "data_norm", "cond", "case", "switch_case")
    same = ("bmm", "dot", "expand_as", "gather_nd", "linspace", "rank")
    losses = ("label_smooth", "log_loss", "mse_loss", "silu", "square_error_cost")
    return {
        **{name: getattr(nn, name) for name in (*moved, "while_loop")},
        **{name: getattr(paddle, name) for name in same},
        **{name: getattr(functional, name) for name in losses},
        **{n: getattr(static, n) for n in ("Print", "create_parameter", "create_global_var")},
        "argsort": argsort,
        "hard_shrink": hard_shrink,
        "kldiv_loss": functional.kl_div,
        "l2_normalize": lambda x, axis, epsilon=1e-12, name=None: functional.normalize(
            x, axis=axis, epsilon=epsilon
        ),
        "range": paddle.arange,
        "reverse": paddle.flip,
        "size": paddle.numel,
        "softshrink": softshrink,
        "tanh_shrink": functional.tanhshrink,
        "thresholded_relu": thresholded_relu,
        "uniform_random": lambda shape, dtype="float32", min=-1.0, max=1.0, seed=0, name=None: (
            paddle.uniform(shape, dtype, min, max, seed)
        ),
        "yolo_box": paddle.vision.ops.yolo_box,
    }
