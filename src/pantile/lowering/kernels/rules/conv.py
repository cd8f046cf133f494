"""Two-dimensional convolutions and their gradients: images channels last, weights packed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import fx

from pantile.lowering.kernels.emission import ACC, Store, epilogue, stores_of, written_by
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.loops import collapsed
from pantile.lowering.kernels.memory import Buffer, Pointer, dense_strides
from pantile.lowering.kernels.operand import Operand, strided
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.elementwise import in_place
from pantile.lowering.kernels.rules.geometry import Geometry
from pantile.lowering.kernels.rules.pairs import by_pairs
from pantile.lowering.kernels.rules.winograd import paying
from pantile.lowering.kernels.sharing import opened_table
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, in_float, shape_of
from pantile.lowering.kernels.writer import CHANNELS_LAST, Writer

_LANES = 16
"""Of the widest vectors of all CPUs."""

_MANY = 12
"""More kernels of convolutions than these share the loops around their tiles: a quarter less
time to compile W4, whose step takes up to 1 % longer. W1b's would take 2 % longer."""

_FEW = 4
"""So few channels to read, and the loops around the pixels are a kernel's own (conv_alone)."""

_TAPS = 64
"""A weight with more taps is handed over by outputs: its rows are long anyway."""

_PANEL = 64
"""No panel of a packed weight is wider."""

_NEAR = 128 * 1024
"""Floats of images that stay in the second cache beside a panel."""


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
        call = form.weight_call(x, dy, shares=_shares_loops(writer), turned=rows.turned)
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


@dataclass(frozen=True)
class Form:
    """A convolution as a C++ type: of all channels, or of one of several groups."""

    text: str
    groups: int
    inputs: int
    """Channels of one group."""
    outputs: int
    weight: fx.Node
    depthwise: bool
    """Each channel is convolved by itself: all at once, vectors of channels."""
    packs_by_panels: bool
    """The weight is most of the data: each panel of it is packed as its turn comes."""
    winograd: frozenset[str]
    """What is computed by fewer multiplications: `forward`, `input`, `weight`; and `scatter`."""
    pairs: bool
    """The source is of words of two channels, and so is the packed weight."""

    @staticmethod
    def of(
        geometry: Geometry,
        nodes: tuple[fx.Node, fx.Node, fx.Node],
        x: Operand | None,
        y: Operand | None,
        *,
        pairs: bool = False,
    ) -> Form:
        """The nodes have the shapes of images, weight and results.

        With `pairs` the images that are given, as x or y, are counted in words.
        """
        (n, ic, h, w), weight, (_, oc, oh, ow) = shapes = [shape_of(node) for node in nodes]
        groups = geometry.groups
        alone = 1 < groups == ic == oc
        inputs, outputs = (ic, oc) if alone else (ic // groups, oc // groups)
        word = 2 if pairs else 1
        inputs, outputs = inputs // (word if x else 1), outputs // (word if y else 1)
        numbers = [n, inputs, h, w, outputs, oh, ow, weight[2], weight[3]]
        numbers += [*geometry.stride, *geometry.padding, *geometry.dilation]
        for operand, (channels, rows, columns) in ((x, (ic, h, w)), (y, (oc, oh, ow))):
            if operand is None:
                numbers += [rows * columns * channels, columns * channels, channels]
            else:
                numbers += [operand.strides[dim] // word for dim in (0, 2, 3)]
        text = f"Conv<{', '.join(map(str, numbers))}>"
        winograd = frozenset[str]() if pairs else paying(geometry, *shapes)
        packs = not pairs and groups == 1 and n * ic * h * w <= min(_NEAR, prod(weight))
        return Form(text, groups, inputs, outputs, nodes[1], alone, packs, winograd, pairs)

    @property
    def _loop(self) -> str:
        """Over the groups, if they are done one after another."""
        apart = self.groups > 1 and not self.depthwise
        return f"for (int group = 0; group < {self.groups}; group++) " if apart else ""

    def first(self, channels: int, name: str = "first") -> str:
        """The first channel of a row that an epilogue is given."""
        return f"(group * {channels} + {name})" if self._loop else name

    @property
    def may_turn(self) -> bool:
        """Can a template hand over the gradient of the weight as torch's weights lie in memory?"""
        return (
            self.inputs > _FEW and not self.depthwise and prod(shape_of(self.weight)[2:]) <= _TAPS
        )

    def _from(self, pointer: str, step: int) -> str:
        return f"{pointer} + group * {step}" if self._loop else pointer

    def write_images(
        self,
        kernel: Kernel,
        writer: Writer,
        trace: Trace,
        axes: list[Axis],
        to: str,
        given: Operand,
    ) -> None:
        """A kernel whose result is images: forward, or to the input."""
        packs = to == "forward" and self._packs_by_turns(writer)
        packed = self._plain(writer) if packs else Pointer(self._packed(writer, to))
        read, made = (self.inputs, self.outputs)[:: 1 if to == "forward" else -1]
        kind = "depthwise" if self.depthwise else "conv"
        weight = f"{packed.name} + group * {self.text}::packed_{to}" if self._loop else packed.name
        x = self._from(given.pointer.name, read)
        pairs = "_pairs" if self.pairs else ""
        call = f"{self._loop}{kind}_{to}{pairs}<{self.text}>({x}, {weight}"
        if packs:
            writer.need_scratch(f"{self.text}::forward_floats")
            call = f"conv_forward_packing<{self.text}>({x}, {packed.name}, scratch"
        elif to in self.winograd:
            writer.need_scratch(f"{self._winograd(to)}::scratch")
            way = self._winograd_call(to, _panel(made) if _shares_loops(writer) else None)
            call = f"{way}{x}, {packed.name}, scratch"
        elif _shares_loops(writer) and not self._loop and not self.depthwise and read > _FEW:
            way = f"Conv{to.capitalize()}{'Pairs' if self.pairs else ''}<{self.text}>"
            plan = opened_table("ConvPlan", f"conv_plan<{way}>")
            call = f"conv_by<{_panel(made)}>({plan}, (const float*){x}, {packed.name}"
        pointers = [given.pointer, packed]
        emit_images(kernel, writer, trace, axes, call, pointers, self.first(made))

    def _winograd_call(self, to: str, panel: str | None) -> str:
        """The call for images up to its first argument; of loops that are shared, if panels say."""
        form = self._winograd(to)
        name, table, of = "winograd", "WinogradPlan", form
        if self._scatters(to):
            name, table, of = "winograd_scatter", "WinogradScatterPlan", self.text
        if panel is None:
            return f"{name}<{of}>("
        return f"{name}_by<{panel}>({opened_table(table, f'{name}_plan<{of}>')}, "

    def _winograd(self, to: str) -> str:
        """The C++ type of its tiles."""
        return f"Winograd{'Scatter' if self._scatters(to) else to.capitalize()}<{self.text}>"

    def _scatters(self, to: str) -> bool:
        return to == "input" and "scatter" in self.winograd

    def need_weight_scratch(self, writer: Writer, *, turned: bool) -> None:
        """What a thread needs to sum the gradient of the weight."""
        if "weight" in self.winograd:
            writer.need_scratch(f"{self._winograd('weight')}::scratch")
        elif not self.depthwise:
            writer.need_scratch(f"{self.text}::{'turned' if turned else 'weight'}_scratch")

    def weight_call(self, x: Operand, dy: Operand, *, shares: bool, turned: bool) -> str:
        """The call that sums the gradient of the weight, up to the body of its epilogue."""
        parameters = "int first, int count, const float* row) INLINE_CALL"
        outer, how = ("int output", ", true") if turned else ("int kh, int kw, int i", "")
        if "weight" in self.winograd:
            plan = opened_table("WinogradWeightPlan", f"winograd_weight_plan<{self.text}>")
            call = f"winograd_weight<{self.text}{how}>("
            call = f"winograd_weight_by<{_panel(self.outputs)}{how}>({plan}, " if shares else call
            return (
                f"{call}{x.pointer.name}, {dy.pointer.name}, scratch, t, T,"
                f" [=]({outer}, {parameters}"
            )
        if self.depthwise:
            return (
                f"depthwise_weight<{self.text}>({x.pointer.name}, {dy.pointer.name}, t, T,"
                f" [&](int kh, int kw, {parameters}"
            )
        if shares and not self._loop and self.inputs > _FEW:
            plan = opened_table("ConvWeightPlan", f"conv_weight_plan<{self.text}, {_cpp(turned)}>")
            return (
                f"conv_weight_by<{_panel(self.outputs)}{how}>({plan}, {x.pointer.name},"
                f" {dy.pointer.name}, scratch, t, T, [=]({outer}, {parameters}"
            )
        a, b = self._from(x.pointer.name, self.inputs), self._from(dy.pointer.name, self.outputs)
        return (
            f"{self._loop}conv_weight<{self.text}{how}>({a}, {b}, scratch, t, T,"
            f" [=]({outer}, {parameters}"
        )

    def _packs_by_turns(self, writer: Writer) -> bool:
        """Is each panel packed as its turn comes, because nothing packs them once for many runs?"""
        if "forward" in self.winograd or not self.packs_by_panels:
            return False
        return not writer.is_constant(self._plain(writer))

    def _plain(self, writer: Writer) -> Pointer:
        """The weight in torch's order, without gaps."""
        axes = [Axis(size) for size in shape_of(self.weight)]
        plain = strided(writer, self.weight, axes)
        if not plain.is_dense(shape_of(self.weight)):
            plain = strided(writer, self.weight, axes, as_it_lies=False)
        return plain.pointer

    def _packed(self, writer: Writer, order: str) -> Buffer:
        """The weight in the order that a kernel reads it."""
        oc, ic, kh, kw = shape_of(self.weight)
        plain = self._plain(writer)
        panels, rest = self.outputs, self.inputs
        if order == "input":
            panels, rest = rest, panels
        if self.depthwise:
            panels, rest = oc, 1
        taps = 16 if order in self.winograd else kh * kw
        times = self.groups if self._loop else 1
        room = (panels + _PANEL) * rest * taps
        packed = writer.temporary([room * times])
        function, size, pack = self._packing(order, panels, kh * kw, room)
        to = f"{packed.name} + group * {size}" if self._loop else packed.name
        source = self._from(plain.name, self.outputs * ic * kh * kw)
        text = "" if pack else f"static_assert({size} <= {room});\n"
        text += f"{self._loop}{function}({pack}{source}, {to}, t, T);"
        note = f"packs {self.weight.name}"
        writer.function(text, [plain, Pointer(packed)], note, writes=[packed])
        return packed

    def _packing(self, order: str, panels: int, taps: int, room: int) -> tuple[str, str, str]:
        """The C++ function that packs, the floats it makes, and its first argument, if any."""
        if self.depthwise or self.pairs:
            function = "pack_depthwise" if self.depthwise else f"pack_{order}_pairs"
            size = f"{self.text}::packed_{order}"
            size = f"depthwise_packed<{self.text}>" if self.depthwise else size
            return f"{function}<{self.text}>", size, ""
        if order in self.winograd:
            way = "scatter" if self._scatters(order) else order
            size, name = f"{self._winograd(order)}::packed", f"winograd_pack_{way}"
            function = f"pack_winograd_{way}<{_vectors(panels)}>"
        else:
            size, name = f"{self.text}::packed_{order}", f"conv_pack_{order}"
            sizes = f"{taps}, {_vectors(panels)}" if order == "input" else _vectors(panels)
            function = f"pack_{order}<{sizes}>"
        pack = opened_table("ConvPack", f"conv_pack_within({room}, {name}<{self.text}>)")
        return function, size, f"{pack}, "


def _cpp(truth: bool) -> str:
    return "true" if truth else "false"


def _shares_loops(writer: Writer) -> bool:
    """Do convolutions share the loops around their tiles?"""
    return writer.convolutions > _MANY


def _panel(channels: int) -> str:
    """What the compiler must know of panels: their vectors, and whether all of them are full.

    The numbers are those of all CPUs where they can be, so that more kernels share a function.
    """
    full = channels % (2 * _LANES) == 0 or channels == _LANES
    return f"{_vectors(channels)}, {_cpp(full)}"


def _vectors(channels: int) -> str:
    return "2" if channels > _LANES else f"conv_vectors({channels})"


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
