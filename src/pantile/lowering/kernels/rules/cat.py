"""Concatenation: each piece is written to its place."""

from __future__ import annotations

from torch import fx

from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis, index_of
from pantile.lowering.kernels.nodes import pieces_of
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.elementwise import write
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer


class Cat(Family):
    """One copy for each piece that does not lie there already."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        buffer = writer.allocate(node)
        dim, pieces = pieces_of(node)
        for piece, start in pieces:
            if _lies_there(writer, node, piece, start):
                continue
            axes = [Axis(size) for size in shape_of(piece)]
            to = list(index_of(axes))
            to[dim] += start
            note = f"piece of {node.name}"
            write(writer, (buffer, tuple(to)), piece, dtype_of(node), axes, note)


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
