"""Two-dimensional convolutions and their gradients: images channels last, weights packed first."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from pantile.lowering.kernels.emission import ACC, Store, epilogue, stores_of, written_by
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.loops import collapsed
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.conv_form import Form, shares_loops
from pantile.lowering.kernels.rules.geometry import Geometry
from pantile.lowering.kernels.rules.images import image_of_pairs, named_axes, wide_image
from pantile.lowering.kernels.rules.pairs import by_pairs
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, in_float, shape_of
from pantile.lowering.kernels.writer import Writer


class _Conv(Family):
    lane = 1
    """The dim of the result whose elements lie side by side."""

    def geometry(self, node: fx.Node) -> Geometry:
        """Of the convolution, or of the one it is a gradient of."""
        return Geometry.of(node.args[2])

    def check(self, node: fx.Node) -> None:
        """Only images, of what is summed in float."""
        self.geometry(node)
        types = [dtype_of(x) for x in (node, *self.operands(node))]
        if not in_float(*types) or len(shape_of(node)) != 4:
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
        nodes = source, weight, node
        pairs = by_pairs(self.geometry(node), nodes, "forward")
        x = image_of_pairs(writer, source) if pairs else wide_image(writer, source)
        form = Form.of(self.geometry(node), nodes, x, None, pairs=pairs)
        trace = Trace(writer.plan)
        axes = named_axes(node, "n c h w")
        if node.args[2] is not None:
            term = trace.operand(node.args[2], [Affine.of(axes[1])], torch.float32)
            trace.given[node] = trace.state("float", f"{ACC} + {term}", [ACC, term])
        form.write_images(kernel, writer, trace, axes, "forward", x)


class ConvInput(_Conv):
    """The gradient that goes on to the layer before."""

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        gradient, weight = self.operands(node)
        nodes = node, weight, gradient
        pairs = by_pairs(self.geometry(node), nodes, "input")
        dy = image_of_pairs(writer, gradient) if pairs else wide_image(writer, gradient)
        form = Form.of(self.geometry(node), nodes, None, dy, pairs=pairs)
        axes = named_axes(node, "n c h w")
        form.write_images(kernel, writer, Trace(writer.plan), axes, "input", dy)


class ConvWeight(_Conv):
    """The gradient of the weight, and the update that needs it."""

    lane = 0

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        gradient, source = self.operands(node)
        dy, x = wide_image(writer, gradient), wide_image(writer, source)
        form = Form.of(self.geometry(node), (source, node, gradient), x, dy)
        rows = (form.may_turn and _turned(kernel, writer)) or _by_outputs(kernel, writer)
        first = "first" if rows.turned else form.first(form.outputs)
        before, body = epilogue(rows.trace, rows.stores, rows.outer, rows.lane, first)
        if rows.turned:
            body = f"const int o = {form.first(form.outputs, 'output')};{body}"
        call = form.weight_call(x, dy, shares=shares_loops(writer), turned=rows.turned)
        form.need_weight_scratch(writer, turned=rows.turned)
        used = {**rows.trace.used, x.pointer.name: x.pointer, dy.pointer.name: dy.pointer}
        text = f"{before}\n{call} {{ {body} }});"
        writes = written_by(rows.stores)
        note = f"convolution, to weight {node.name}"
        writer.function(text, used, note, writes=writes)


@dataclass(frozen=True)
class _Rows:
    """In which rows the sums of a weight's gradient are handed over, and what is stored of them."""

    trace: Trace
    outer: list[Axis]
    lane: Axis
    stores: list[Store]
    turned: bool
    """A row is some inputs of one output with all their taps; else outputs of an input and tap."""


def _by_outputs(kernel: Kernel, writer: Writer) -> _Rows:
    trace = Trace(writer.plan)
    o, i, kh, kw = axes = named_axes(kernel.anchor, "o i kh kw")
    return _Rows(trace, [kh, kw, i], o, stores_of(writer, kernel, trace, axes, None), False)


def _turned(kernel: Kernel, writer: Writer) -> _Rows | None:
    """As torch's weights lie in memory; None if what is stored does not lie so."""
    trace = Trace(writer.plan)
    o, *rest = axes = named_axes(kernel.anchor, "o i kh kw")
    stores = stores_of(writer, kernel, trace, axes, None)
    stores = [replace(store, address=trace.space.resolve(store.address)) for store in stores]
    leaves = [leaf for axis in rest for leaf in trace.space.leaves(axis) if leaf.size > 1]
    leaves, stores = collapsed(trace, leaves, stores)
    if len(leaves) != 1 or any(store.address.factor(leaves[0]) != 1 for store in stores):
        return None
    return _Rows(trace, [o], leaves[0], stores, True)
