"""Two-dimensional convolutions and their gradients: images channels last, weights packed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import ACC, epilogue, stores_of
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.memory import Buffer, Pointer
from pantile.lowering.kernels.operand import Operand, strided
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import CHANNELS_LAST, Writer

_PANEL = 64
"""No panel of a packed weight is wider."""


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation of a two-dimensional convolution."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @staticmethod
    def of(arguments: Any) -> Geometry:
        """From ATen's arguments; refuses what has no kernel."""
        stride, padding, dilation, transposed, _, groups = arguments
        if transposed:
            raise Refused("a transposed convolution")
        if groups != 1:
            raise Refused("a convolution in groups")
        return Geometry(
            *(tuple(x) * 2 if len(x) == 1 else tuple(x) for x in (stride, padding, dilation))
        )


class _Conv(Family):
    lane = 1
    """The dim of the result whose elements lie side by side."""

    def geometry(self, node: fx.Node) -> Geometry:
        """Of the convolution, or of the one it is a gradient of."""
        return Geometry.of(node.args[2])

    def check(self, node: fx.Node) -> None:
        """Only images of float32."""
        self.geometry(node)
        if dtype_of(node) is not torch.float32 or len(shape_of(node)) != 4:
            raise Refused(f"a convolution of {dtype_of(node)} in {len(shape_of(node)) - 2} dims")

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """Images and weight."""
        return list(node.args[:2])  # type: ignore[arg-type]

    def takes(self, anchor: fx.Node, radix: Radix) -> bool:
        """Lanes are not cut."""
        return len(radix[self.lane]) <= 1


class ConvForward(_Conv):
    """y = x * w + bias."""

    def geometry(self, node: fx.Node) -> Geometry:
        """In ATen's order."""
        return Geometry.of(node.args[3:9])

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        source, weight = self.operands(node)
        x = image(writer, source)
        shapes = shape_of(source), shape_of(weight), shape_of(node)
        form = _form(self.geometry(node), shapes, x, None)
        packed = _packed(writer, weight, form, "forward")
        trace = Trace(writer.plan)
        axes = named_axes(node, "n c h w")
        if node.args[2] is not None:
            term = trace.operand(node.args[2], [Affine.of(axes[1])], torch.float32)
            trace.given[node] = trace.state("float", f"{ACC} + {term}", [ACC, term])
        call = f"conv_forward<{form}>({x.pointer.name}, {packed.name}"
        emit_images(kernel, writer, trace, axes, call, [x.pointer, Pointer(packed)])


class ConvInput(_Conv):
    """The gradient that goes on to the layer before."""

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        gradient, weight = self.operands(node)
        dy = image(writer, gradient)
        shapes = shape_of(node), shape_of(weight), shape_of(gradient)
        form = _form(self.geometry(node), shapes, None, dy)
        packed = _packed(writer, weight, form, "input")
        call = f"conv_input<{form}>({dy.pointer.name}, {packed.name}"
        axes = named_axes(node, "n c h w")
        emit_images(kernel, writer, Trace(writer.plan), axes, call, [dy.pointer, Pointer(packed)])


class ConvWeight(_Conv):
    """The gradient of the weight, and the update that needs it."""

    lane = 0

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        gradient, source = self.operands(node)
        dy, x = image(writer, gradient), image(writer, source)
        shapes = shape_of(source), shape_of(node), shape_of(gradient)
        form = _form(self.geometry(node), shapes, x, dy)
        writer.need_scratch(f"{form}::weight_scratch")
        trace = Trace(writer.plan)
        o, i, kh, kw = axes = named_axes(node, "o i kh kw")
        stores = stores_of(writer, kernel, trace, axes, None)
        before, body = epilogue(trace, stores, [kh, kw, i], o, "first")
        text = (
            f"{before}\nconv_weight<{form}>({x.pointer.name}, {dy.pointer.name}, scratch, t, T,"
            f" [&](int kh, int kw, int i, int first, int count, const float* row) INLINE_CALL"
            f" {{ {body} }});"
        )
        used = {**trace.used, x.pointer.name: x.pointer, dy.pointer.name: dy.pointer}
        writer.function(text, used, f"convolution, to weight {node.name}")


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
) -> None:
    """A kernel that gives its results pixel by pixel, channels side by side."""
    n, c, h, w = axes
    stores = stores_of(writer, kernel, trace, axes, CHANNELS_LAST)
    before, body = epilogue(trace, stores, [n, h, w], c, "first")
    text = (
        f"{before}\n{call}, t, T,"
        " [&](int n, int h, int w, int first, int count, const float* row) INLINE_CALL"
        f" {{ {body} }});"
    )
    used = {**trace.used, **{pointer.name: pointer for pointer in read}}
    writer.function(text, used, f"{call.partition('<')[0]} {kernel.anchor.name}")


def image(writer: Writer, node: fx.Node) -> Operand:
    """Images whose channels lie side by side."""
    axes = [Axis(size) for size in shape_of(node)]
    found = strided(writer, node, axes, order=CHANNELS_LAST)
    if found.strides[1] == 1 or shape_of(node)[1] == 1:
        return found
    return strided(writer, node, axes, order=CHANNELS_LAST, as_it_lies=False)


def _form(
    geometry: Geometry,
    shapes: tuple[tuple[int, ...], ...],
    x: Operand | None,
    y: Operand | None,
) -> str:
    """The convolution as a C++ type; the shapes are those of images, weight and results."""
    (n, ic, h, w), weight, (_, oc, oh, ow) = shapes
    numbers = [n, ic, h, w, oc, oh, ow, weight[2], weight[3]]
    numbers += [*geometry.stride, *geometry.padding, *geometry.dilation]
    for operand, (channels, rows, columns) in ((x, (ic, h, w)), (y, (oc, oh, ow))):
        if operand is None:
            numbers += [rows * columns * channels, columns * channels, channels]
        else:
            numbers += [operand.strides[0], operand.strides[2], operand.strides[3]]
    return f"Conv<{', '.join(map(str, numbers))}>"


def _packed(writer: Writer, weight: fx.Node, form: str, order: str) -> Buffer:
    axes = [Axis(size) for size in shape_of(weight)]
    oc, ic, kh, kw = shape_of(weight)
    plain = strided(writer, weight, axes)
    if plain.strides != (ic * kh * kw, kh * kw, kw, 1):
        plain = strided(writer, weight, axes, as_it_lies=False)
    panels, rest = (oc, ic) if order == "forward" else (ic, oc)
    packed = writer.temporary([(panels + _PANEL) * rest * kh * kw])
    text = (
        f"static_assert({form}::packed_{order} <= {packed.size});"
        f"\npack_{order}<{form}>({plain.pointer.name}, {packed.name}, t, T);"
    )
    writer.function(text, [plain.pointer, Pointer(packed)], f"packs {weight.name}")
    return packed
