"""What goes along a dim step by step: running sums and products, places of maxima.

Threads divide the other dims.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import Store, placed
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, index_of
from pantile.lowering.kernels.loops import loop, shared_loop
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import cpp, dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten


class _Along(Family):
    has_epilogue = False

    def dims(self, node: fx.Node) -> list[int]:
        """The dims that are gone along."""
        rank = len(shape_of(node.args[0]))  # type: ignore[arg-type]
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return list(range(rank)) if dim is None or not rank else [dim % rank]

    def nest(
        self, trace: Trace, outer: list[Axis], inner: list[Axis], texts: tuple[str, str, str]
    ) -> str:
        """Loops; the texts come before the inner ones, in them, and after them."""
        leaves = trace.space.leaves
        outer = [leaf for axis in outer for leaf in leaves(axis) if leaf.size > 1]
        inner = [leaf for axis in inner for leaf in leaves(axis) if leaf.size > 1]
        lines = placed(trace, [[leaf] for leaf in [*outer, *inner]], [])
        begin, step, end = texts
        text = "".join(lines[0])
        for depth, leaf in enumerate(outer, 1):
            head = shared_loop(leaf) if depth == 1 else loop(leaf)
            text += f"\n{head} {{" + "".join(lines[depth])
        text += begin
        for depth, leaf in enumerate(inner, 1 + len(outer)):
            text += f"\n{loop(leaf)} {{" + "".join(lines[depth])
        text += step + "}" * len(inner) + end + "}" * len(outer)
        return text if outer else f"if (t == 0) {{ {text} }}"


class Running(_Along):
    """Sums or products of all elements so far; in double for floats, as torch does it."""

    def __init__(self, start: int, sign: str) -> None:
        self.start, self.sign = start, sign

    def check(self, node: fx.Node) -> None:
        """Not of truth, which is never the type of a sum."""
        if dtype_of(node) is torch.bool:
            raise Refused("running sums of bool")

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        trace = Trace(writer.plan)
        axes = [Axis(size) for size in shape_of(node)]
        value = trace.operand(node.args[0], index_of(axes), dtype_of(node))
        sums = "double" if dtype_of(node).is_floating_point else "i64"
        buffer = writer.allocate(node)
        result = f"({cpp(dtype_of(node))})sum"
        store = Store.at(trace, buffer, index_of(axes), result).code(trace.space)
        dims = self.dims(node)
        texts = (f"{sums} sum = {self.start};", f"sum {self.sign}= {value};{store}", "")
        outer = [axis for dim, axis in enumerate(axes) if dim not in dims]
        text = self.nest(trace, outer, [axes[dim] for dim in dims], texts)
        writer.function(text, trace.used, f"running {node.name}", writes=[buffer])


class Place(_Along):
    """Where the largest or smallest value is: the first of equal ones; a NaN is both."""

    def __init__(self, sign: str) -> None:
        self.sign = sign

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        source: Any = node.args[0]
        trace = Trace(writer.plan)
        axes = [Axis(size) for size in shape_of(source)]
        dims = self.dims(node)
        value = trace.value(source, index_of(axes))
        place, step = Affine(), 1
        for dim in reversed(dims):
            place += Affine.of(axes[dim]) * step
            step *= axes[dim].size
        at = trace.state("i64", "(i64)({0})", (), [place])
        named = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        kept = [*index_of(axes)]
        for dim in sorted(dims, reverse=True):
            kept[dim : dim + 1] = [Affine()] if named else []
        buffer = writer.allocate(node)
        store = Store.at(trace, buffer, kept, "place").code(trace.space)
        kind = cpp(dtype_of(source))
        odd = f" || ({value} != {value} && best == best)"
        change = f"if ({at} == 0 || {value} {self.sign} best{odd}) best = {value}, place = {at};"
        texts = (f"{kind} best = 0; i64 place = 0;", change, store)
        outer = [axis for dim, axis in enumerate(axes) if dim not in dims]
        text = self.nest(trace, outer, [axes[dim] for dim in dims], texts)
        writer.function(text, trace.used, f"place {node.name}", writes=[buffer])


SCANS: dict[Any, Family] = {
    aten.cumsum.default: Running(0, "+"),
    aten.cumprod.default: Running(1, "*"),
    aten.argmax.default: Place(">"),
    aten.argmin.default: Place("<"),
}
