"""Sums at computed places: the gradient of an embedding.

Threads divide the columns, so every sum is added in the order of the rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import placed
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, index_of
from pantile.lowering.kernels.loops import loop
from pantile.lowering.kernels.memory import Pointer
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten


class ScatterAdd(Family):
    """table[place of row] += row, where the mask says so."""

    has_epilogue = False

    def takes_node(self, node: fx.Node) -> bool:
        """Only rows of a table, from one tensor of places."""
        table, _, places, rows = node.args[:4]
        assert isinstance(places, (list, tuple)) and isinstance(table, fx.Node)
        if len(places) != 1 or len(shape_of(table)) != 2 or not isinstance(places[0], fx.Node):
            return False
        assert isinstance(rows, fx.Node)
        return shape_of(rows) == (*shape_of(places[0]), shape_of(table)[1])

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels: the table as it was, then the rows."""
        node = kernel.anchor
        table, mask, places, rows = node.args[:4]
        assert isinstance(places, (list, tuple)) and isinstance(table, fx.Node)
        count, width = shape_of(table)
        buffer = writer.allocate(node)
        trace = Trace(writer.plan)
        where: Any = places[0]
        outer = [Axis(size) for size in shape_of(where)]
        column = Axis(width, "column")
        place = trace.value(where, index_of(outer))
        place = trace.state("i64", f"bounded({place}, {count}, failed)", [place])
        shape = shape_of(mask)  # type: ignore[arg-type]
        index = [*index_of(outer), Affine.of(column)]
        chosen = trace.operand(mask, index if len(shape) > len(outer) else index[:-1], torch.bool)
        row = trace.operand(rows, index, dtype_of(node))
        start = Trace(writer.plan, prefix="w")
        cell = Axis(count, "cell")
        old = start.value(table, (Affine.of(cell), Affine.of(column)))
        levels = [[leaf] for axis in outer for leaf in trace.space.leaves(axis)]
        lines = placed(trace, [*levels, trace.space.leaves(column)], [])
        first = placed(start, [[cell], [column]], [])
        step, side = buffer.strides
        columns = (
            f"LANEWISE for (int column = share({width}, t, T), columns = share({width}, t + 1, T);"
            " column < columns; column++)"
        )
        text = "".join(first[0]) + f"\n{loop(cell)} {{" + "".join(first[1])
        text += f"\n{columns} {{{''.join(first[2])}"
        text += f" {buffer.name}[cell * {step} + column * {side}] = {old}; }} }}"
        text += "{" + "".join(lines[0])
        for depth, level in enumerate(levels, 1):
            text += f"\n{loop(level[0])} {{" + "".join(lines[depth])
        text += (
            f"\n{columns} {{{''.join(lines[-1])}"
            f" {buffer.name}[{place} * {step} + column * {side}] += {chosen} ? {row} : 0; }}"
        )
        text += "}" * (len(levels) + 1)
        used = {**trace.used, **start.used, buffer.name: Pointer(buffer)}
        writer.function(text, used, f"sums at places {node.name}")
