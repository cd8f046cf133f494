"""Kernels that read or make images: channels side by side, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from pantile.lowering.kernels.emission import epilogue, stores_of, written_by
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.memory import Buffer, Pointer, dense_strides
from pantile.lowering.kernels.operand import Operand, strided
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.elementwise import in_place
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import shape_of
from pantile.lowering.kernels.writer import CHANNELS_LAST, Writer


def named_axes(node: fx.Node, names: str) -> list[Axis]:
    """The axes of a value, by the names the templates give them."""
    return [Axis(n, name) for n, name in zip(shape_of(node), names.split(), strict=True)]


def emit_images(
    kernel: Kernel,
    writer: Writer,
    trace: Trace,
    axes: list[Axis],
    call: str,
    read: Sequence[Pointer],
    first: str = "first",
    over: Sequence[tuple[Buffer, Affine | None]] = (),
) -> None:
    """A kernel that gives its results pixel by pixel, channels side by side.

    `over`: all that the call reads, and where, if pixels may be written over what they are made of.
    """
    n, c, h, w = axes
    stores = stores_of(writer, kernel, trace, axes, CHANNELS_LAST)
    before, body = epilogue(trace, stores, [n, h, w], c, first)
    text = (
        f"{before}\n{call}, t, T,"
        " [=](int n, int h, int w, int first, int count, const float* row) INLINE_CALL"
        f" {{ {body} }});"
    )
    used = {**trace.used, **{pointer.name: pointer for pointer in read}}
    places = in_place(writer, trace, stores, over) if over else ()
    note = f"images {kernel.anchor.name}"
    writer.function(text, used, note, places, written_by(stores))


def wide_image(writer: Writer, node: fx.Node) -> Operand:
    """Images in float: a pixel meets so many weights that one of 16 bits is widened before."""
    return image(writer, node, wide=True)


def image_of_pairs(writer: Writer, node: fx.Node) -> Operand:
    """Images of 16 bits as words of two channels: all steps are even."""
    found = image(writer, node)
    if any(stride % 2 for stride in (found.strides[0], *found.strides[2:])):
        found = image(writer, node, as_it_lies=False)
    return found


def image(writer: Writer, node: fx.Node, *, wide: bool = False, as_it_lies: bool = True) -> Operand:
    """Images whose channels lie side by side."""
    axes = [Axis(size) for size in shape_of(node)]
    shape = shape_of(node)
    found = strided(writer, node, axes, order=CHANNELS_LAST, as_it_lies=as_it_lies, wide=wide)
    lies = all(stride or size == 1 for stride, size in zip(found.strides, shape, strict=True))
    if not lies or found.strides[1] not in (0, 1):
        found = strided(writer, node, axes, order=CHANNELS_LAST, as_it_lies=False, wide=wide)
    # The templates divide by strides, also by those of one step.
    dense = dense_strides(shape, CHANNELS_LAST)
    strides = (stride or other for stride, other in zip(found.strides, dense, strict=True))
    return replace(found, strides=tuple(strides))
