"""Values made of another one and a piece of it: padding, and writing into a slice.

The whole is written first, then the piece over it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, index_of
from pantile.lowering.kernels.nodes import slice_of
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.elementwise import write
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten


class Pad(Family):
    """A border of one value around a tensor; a negative border cuts."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        source: Any = node.args[0]
        pads: Any = node.args[1]
        value: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
        buffer, dtype, note = writer.allocate(node), dtype_of(node), f"part of {node.name}"
        shape = shape_of(source)
        before = [0] * len(shape)
        after = [0] * len(shape)
        for place in range(len(pads) // 2):
            before[-1 - place], after[-1 - place] = pads[2 * place], pads[2 * place + 1]
        if any(pad > 0 for pad in pads):
            axes = [Axis(size) for size in shape_of(node)]
            fill = 0 if value is None else value
            write(writer, (buffer, index_of(axes)), fill, dtype, axes, note)
        kept = [n + min(a, 0) + min(b, 0) for n, a, b in zip(shape, before, after, strict=True)]
        if all(size > 0 for size in kept):
            axes = [Axis(size) for size in kept]
            inner = [Affine.of(x) + max(0, -pad) for x, pad in zip(axes, before, strict=True)]
            outer = [Affine.of(x) + max(0, pad) for x, pad in zip(axes, before, strict=True)]
            write(writer, (buffer, tuple(outer)), source, dtype, axes, note, tuple(inner))


class SliceScatter(Family):
    """A tensor with a slice of it replaced."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        source, piece = node.args[:2]
        assert isinstance(piece, fx.Node)
        buffer, dtype, note = writer.allocate(node), dtype_of(node), f"part of {node.name}"
        shape = shape_of(node)
        dim, start, step = slice_of(node.args[2:], node.kwargs, shape)
        if shape_of(piece) != shape:
            axes = [Axis(size) for size in shape]
            write(writer, (buffer, index_of(axes)), source, dtype, axes, note)
        axes = [Axis(size) for size in shape_of(piece)]
        to = list(index_of(axes))
        to[dim] = to[dim] * step + start
        write(writer, (buffer, tuple(to)), piece, dtype, axes, note)


PARTS: dict[Any, Family] = {
    aten.constant_pad_nd.default: Pad(),
    aten.slice_scatter.default: SliceScatter(),
}
