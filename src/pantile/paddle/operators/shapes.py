"""Operators that move elements without computing: reshape, slice, join, repeat, pad."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from pantile.errors import OperandError
from pantile.paddle.call import Call, Table, Tensor, one_tensor, with_attributes


def _reshape(call: Call, x: Tensor) -> Tensor:
    """0 keeps the dim of the same place."""
    shape = call.known_integers(("ShapeTensor", "Shape"), "shape")
    return x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(shape)])


def _flatten(call: Call, x: Tensor) -> Tensor:
    first = call.integer("axis", 1)
    return x.reshape(math.prod(x.shape[:first]), -1)


def _flatten_range(call: Call, x: Tensor) -> Tensor:
    return torch.flatten(x, call.integer("start_axis", 1), call.integer("stop_axis", -1))


def _squeeze(call: Call, x: Tensor) -> Tensor:
    axes = call.known_integers(("AxesTensor", "AxesTensorList"), "axes", []) or range(x.dim())
    places = {axis % x.dim() for axis in axes} if x.dim() else set()
    return x.reshape([n for place, n in enumerate(x.shape) if n != 1 or place not in places])


def _unsqueeze(call: Call, x: Tensor) -> Tensor:
    for axis in call.known_integers(("AxesTensor", "AxesTensorList"), "axes"):
        x = x.unsqueeze(axis)
    return x


def _concat(call: Call) -> None:
    axis = call.optional("AxisTensor")
    call.put(torch.cat(call.tensors(), call.integer("axis", 0) if axis is None else int(axis)))


def _stack(call: Call) -> None:
    call.put(torch.stack(call.tensors(), call.integer("axis", 0)), "Y")


def _unstack(call: Call) -> None:
    call.put_all(torch.unbind(call.tensor(), call.integer("axis", 0)), "Y")


def _split(call: Call) -> None:
    x = call.tensor()
    given = call.optional("AxisTensor")
    axis = call.integer("axis", 0) if given is None else int(given)
    sections = call.known_integers(("SectionsTensorList",), "sections", [])
    if sections:
        known = sum(size for size in sections if size > 0)
        sections = [size if size >= 0 else x.shape[axis] - known for size in sections]
        call.put_all(torch.split(x, sections, axis))
        return
    call.put_all(torch.split(x, x.shape[axis] // call.integer("num"), axis))


def _without(x: Tensor, dims: list[int]) -> Tensor:
    return x.reshape([n for place, n in enumerate(x.shape) if place not in dims])


def _slice(call: Call) -> None:
    x = call.tensor("Input")
    starts = call.known_integers(("StartsTensor", "StartsTensorList"), "starts")
    ends = call.known_integers(("EndsTensor", "EndsTensorList"), "ends")
    for axis, start, end in zip(call.integers("axes"), starts, ends, strict=True):
        size = x.shape[axis]
        first, last = (max(n + size, 0) if n < 0 else min(n, size) for n in (start, end))
        x = x.narrow(axis, first, max(last - first, 0))
    call.put(_without(x, call.integers("decrease_axis", [])))


def _strided_slice(call: Call) -> None:
    x = call.tensor("Input")
    starts = call.known_integers(("StartsTensor", "StartsTensorList"), "starts")
    ends = call.known_integers(("EndsTensor", "EndsTensorList"), "ends")
    strides = call.known_integers(("StridesTensor", "StridesTensorList"), "strides")
    for axis, start, end, stride in zip(call.integers("axes"), starts, ends, strides, strict=True):
        size = x.shape[axis]
        first = max(start + size, 0) if start < 0 else min(start, size)
        last = max(end + size, 0) if end < 0 else min(end, size)
        # Going down, an end of -1 is before the first element, not the last one.
        stop = None if stride < 0 and end == -1 else last
        chosen = range(size)[first:stop:stride]
        if stride > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(chosen.start, chosen.stop, stride),)]
        else:
            x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64))
    call.put(_without(x, call.integers("decrease_axis", [])))


def _expand_v2(call: Call, x: Tensor) -> Tensor:
    return x.expand(call.known_integers(("Shape", "expand_shapes_tensor"), "shape"))


def _expand_as(call: Call, x: Tensor) -> Tensor:
    target = call.integers("target_shape", [])
    return x.expand(target or call.tensor("Y").shape)


def _expand(call: Call, x: Tensor) -> Tensor:
    return x.repeat(call.known_integers(("ExpandTimes", "expand_times_tensor"), "expand_times"))


def _tile(call: Call, x: Tensor) -> Tensor:
    times = call.known_integers(("RepeatTimes", "repeat_times_tensor"), "repeat_times")
    return torch.tile(x, times)


_PAD_MODES = {"edge": "replicate"}


def _pad3d(call: Call, x: Tensor) -> Tensor:
    mode = call.text("mode", "constant")
    pads = call.known_integers(("Paddings",), "paddings")
    last = call.text("data_format", "NCDHW") == "NDHWC"
    if last:
        x = x.movedim(-1, 1)
    if mode == "constant":
        y = F.pad(x, pads, value=call.number("value", 0.0))
    else:
        y = F.pad(x, pads, _PAD_MODES.get(mode, mode))
    return y.movedim(1, -1) if last else y


def _pad(call: Call, x: Tensor) -> Tensor:
    """Pads of the first dim come first; torch wants those of the last dim first."""
    pads = call.integers("paddings")
    pairs = [pads[i : i + 2] for i in range(0, len(pads), 2)]
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=call.number("pad_value"))


def _meshgrid(call: Call) -> None:
    vectors = [vector.reshape(-1) for vector in call.tensors()]
    call.put_all(torch.meshgrid(*vectors, indexing="ij"))


def _shape(call: Call) -> None:
    call.put(torch.tensor(list(call.tensor("Input").shape), dtype=torch.int32))


def _size(call: Call) -> None:
    call.put(torch.tensor(call.tensor("Input").numel(), dtype=torch.int64))


def _transpose(call: Call, x: Tensor) -> Tensor:
    axes = call.integers("axis")
    if len(axes) != x.dim():
        raise OperandError(
            f"{call.type}: axis={axes} does not name the {x.dim()} dims of its input",
            fix="name each dim once",
        )
    return x.permute(axes)


TABLE: Table = {
    "concat": _concat,
    "expand": with_attributes(_expand),
    "expand_as_v2": with_attributes(_expand_as),
    "expand_v2": with_attributes(_expand_v2),
    "flatten": with_attributes(_flatten),
    "flatten2": with_attributes(_flatten),
    "flatten_contiguous_range": with_attributes(_flatten_range),
    "flip": with_attributes(lambda call, x: torch.flip(x, call.integers("axis"))),
    "meshgrid": _meshgrid,
    "pad": with_attributes(_pad),
    "pad3d": with_attributes(_pad3d),
    "reshape": with_attributes(_reshape),
    "reshape2": with_attributes(_reshape),
    "shape": _shape,
    "share_data": one_tensor(lambda x: x),
    "size": _size,
    "slice": _slice,
    "split": _split,
    "squeeze2": with_attributes(_squeeze),
    "stack": _stack,
    "strided_slice": _strided_slice,
    "tile": with_attributes(_tile),
    "transpose2": with_attributes(_transpose),
    "unsqueeze2": with_attributes(_unsqueeze),
    "unstack": _unstack,
}
