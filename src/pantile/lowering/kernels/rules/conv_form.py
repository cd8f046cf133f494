"""A convolution as the templates know it: types, plans and calls in C++."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import fx

from pantile.lowering.kernels.index import Axis
from pantile.lowering.kernels.memory import Buffer, Pointer
from pantile.lowering.kernels.operand import Operand, strided
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.geometry import Geometry
from pantile.lowering.kernels.rules.images import emit_images
from pantile.lowering.kernels.rules.winograd import paying
from pantile.lowering.kernels.sharing import opened_table
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import shape_of
from pantile.lowering.kernels.writer import Writer

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
            way = self._winograd_call(to, _panel(made) if shares_loops(writer) else None)
            call = f"{way}{x}, {packed.name}, scratch"
        elif shares_loops(writer) and not self._loop and not self.depthwise and read > _FEW:
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


def shares_loops(writer: Writer) -> bool:
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
