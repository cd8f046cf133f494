"""Convolutions and pooling, with Paddle's ways to say how much is padded."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pantile.errors import OperandError
from pantile.paddle.call import Call, Table, Tensor

Pads = list[int]
"""Rows above, rows below, columns left, columns right."""


def _pads(call: Call, x: Tensor, window: list[int], strides: list[int], steps: list[int]) -> Pads:
    algorithm = call.text("padding_algorithm", "EXPLICIT")
    if algorithm == "VALID":
        return [0, 0, 0, 0]
    if algorithm == "SAME":
        found: Pads = []
        for size, width, stride, step in zip(x.shape[2:], window, strides, steps, strict=True):
            covered = (-(-size // stride) - 1) * stride + (width - 1) * step + 1
            missing = max(covered - size, 0)
            found += [missing // 2, missing - missing // 2]
        return found
    given = call.integers("paddings", [0, 0])
    return [pad for pad in given for _ in (0, 1)] if len(given) == 2 else given


def _is_even(pads: Pads) -> bool:
    return pads[0] == pads[1] and pads[2] == pads[3]


def _padded(x: Tensor, pads: Pads, value: float = 0.0) -> Tensor:
    return F.pad(x, (pads[2], pads[3], pads[0], pads[1]), value=value)


def _channels_last(call: Call) -> bool:
    return call.text("data_format", "NCHW") == "NHWC"


def _convolution(call: Call) -> None:
    x, weight = call.tensor("Input"), call.tensor("Filter")
    last = _channels_last(call)
    if last:
        x = x.permute(0, 3, 1, 2)
    strides, steps = call.integers("strides", [1, 1]), call.integers("dilations", [1, 1])
    pads = _pads(call, x, list(weight.shape[2:]), strides, steps)
    around = [pads[0], pads[2]]
    if not _is_even(pads):
        x, around = _padded(x, pads), [0, 0]
    bias = call.optional("Bias")
    y = F.conv2d(x, weight, bias, strides, around, steps, call.integer("groups", 1))
    call.put(y.permute(0, 2, 3, 1) if last else y, "Output")


def _transposed_convolution(call: Call) -> None:
    x, weight = call.tensor("Input"), call.tensor("Filter")
    last = _channels_last(call)
    if last:
        x = x.permute(0, 3, 1, 2)
    strides, steps = call.integers("strides", [1, 1]), call.integers("dilations", [1, 1])
    groups = call.integer("groups", 1)
    pads = _pads(call, x, list(weight.shape[2:]), strides, steps)
    more = call.integers("output_padding", []) or [0, 0]
    size = call.integers("output_size", [])
    if size:
        natural = [
            (n - 1) * stride + (width - 1) * step + 1 - before - after
            for n, stride, step, width, before, after in zip(
                x.shape[2:], strides, steps, weight.shape[2:], pads[::2], pads[1::2], strict=True
            )
        ]
        more = [wanted - natural[i] for i, wanted in enumerate(size)]
    if _is_even(pads):
        y = F.conv_transpose2d(x, weight, None, strides, pads[::2], more, groups, steps)
    else:
        whole = F.conv_transpose2d(x, weight, None, strides, 0, more, groups, steps)
        rows, columns = whole.shape[2:]
        y = whole[:, :, pads[0] : rows - pads[1], pads[2] : columns - pads[3]]
    call.put(y.permute(0, 2, 3, 1) if last else y, "Output")


def _pool(call: Call) -> None:
    x, last = call.tensor(), _channels_last(call)
    if last:
        x = x.permute(0, 3, 1, 2)
    y = _pooled(call, x)
    call.put(y.permute(0, 2, 3, 1) if last else y)


def _pooled(call: Call, x: Tensor) -> Tensor:
    window, average = call.integers("ksize"), call.text("pooling_type") == "avg"
    if call.flag("adaptive"):
        size = (window[0], window[1])
        return F.adaptive_avg_pool2d(x, size) if average else F.adaptive_max_pool2d(x, size)
    strides = call.integers("strides", [1, 1])
    if call.flag("global_pooling"):
        window, pads = list(x.shape[2:]), [0, 0, 0, 0]
    else:
        pads = _pads(call, x, window, strides, [1, 1])
    if average:
        return _average_pool(call, x, window, strides, pads)
    if not _torch_pads(pads, window):
        x, pads = _padded(x, pads, float("-inf")), [0, 0, 0, 0]
    return F.max_pool2d(x, window, strides, pads[::2], 1, call.flag("ceil_mode"))


def _average_pool(
    call: Call, x: Tensor, window: list[int], strides: list[int], pads: Pads
) -> Tensor:
    up, excluding = call.flag("ceil_mode"), call.flag("exclusive", True)
    if _torch_pads(pads, window):
        return F.avg_pool2d(x, window, strides, pads[::2], up, not excluding)
    y = F.avg_pool2d(_padded(x, pads), window, strides, 0, up)
    if not excluding:
        return y
    share = F.avg_pool2d(_padded(torch.ones_like(x[:1, :1]), pads), window, strides, 0, up)
    return y / share


def _torch_pads(pads: Pads, window: list[int]) -> bool:
    """Can torch pad so itself? Evenly, and at most half a window."""
    return _is_even(pads) and pads[0] * 2 <= window[0] and pads[2] * 2 <= window[1]


def _max_pool_with_index(call: Call) -> None:
    x, window = call.tensor(), call.integers("ksize")
    if call.flag("global_pooling"):
        window = list(x.shape[2:])
    if call.flag("adaptive"):
        y, index = F.adaptive_max_pool2d(x, (window[0], window[1]), return_indices=True)
    else:
        strides, pads = call.integers("strides", [1, 1]), call.integers("paddings", [0, 0])
        if any(pad * 2 > width for pad, width in zip(pads, window, strict=True)):
            raise OperandError(
                f"max_pool2d_with_index: paddings={pads} are more than half of ksize={window}",
                fix="pad at most half of the window",
            )
        y, index = F.max_pool2d(x, window, strides, pads, return_indices=True)
    call.put(y)
    call.put(index.to(torch.int32), "Mask")


TABLE: Table = {
    "conv2d": _convolution,
    "conv2d_transpose": _transposed_convolution,
    "depthwise_conv2d": _convolution,
    "depthwise_conv2d_transpose": _transposed_convolution,
    "max_pool2d_with_index": _max_pool_with_index,
    "pool2d": _pool,
}
