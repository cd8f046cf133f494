"""Concatenation: each piece is written to its place."""

from __future__ import annotations

from typing import Any

from torch import fx

from pantile.lowering.kernels.emission import Store
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis, index_of
from pantile.lowering.kernels.loops import nest
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer


class Cat(Family):
    """One copy for each piece."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        pieces: Any = node.args[0]
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        dim %= len(shape_of(node))
        start = 0
        for piece in pieces:
            if not _lies_there(writer, node, piece, start):
                _write(writer, node, piece, dim, start)
            start += shape_of(piece)[dim]


def _lies_there(writer: Writer, node: fx.Node, piece: fx.Node, start: int) -> bool:
    """Was the piece computed in its place?"""
    made = writer.plan.base(piece)
    place = writer.plan.pieces.get(made)
    buffer = writer.plan.buffer(made)
    return (
        place is not None
        and place.whole is node
        and place.start == start
        and buffer is not None
        and buffer.within is writer.plan.buffer(node)
    )


def _write(writer: Writer, node: fx.Node, piece: fx.Node, dim: int, start: int) -> None:
    buffer = writer.allocate(node)
    trace = Trace(writer.plan)
    axes = [Axis(size) for size in shape_of(piece)]
    value = trace.cast(trace.value(piece, index_of(axes)), dtype_of(piece), dtype_of(node))
    index = list(index_of(axes))
    index[dim] += start
    store = Store.at(trace, buffer, index, value)
    writer.function(nest(trace, axes, [store]), trace.used, f"piece of {node.name}")
