"""Values made of another one and a piece of it: padding, and writing into a slice.

The whole is written first, then the piece over it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import Store
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, Index, index_of
from pantile.lowering.kernels.loops import nest
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten


def write(
    writer: Writer, node: fx.Node, value: Any, axes: list[Axis], source: Index, to: Index
) -> None:
    """A kernel: node[to] = value[source], over axes."""
    buffer = writer.allocate(node)
    trace = Trace(writer.plan)
    name = trace.operand(value, source, dtype_of(node))
    store = Store.at(trace, buffer, to, name)
    writer.function(nest(trace, axes, [store]), trace.used, f"part of {node.name}")


class Pad(Family):
    """A border of one value around a tensor; a negative border cuts."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        source: Any = node.args[0]
        pads: Any = node.args[1]
        value: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
        shape = shape_of(source)
        before = [0] * len(shape)
        after = [0] * len(shape)
        for place in range(len(pads) // 2):
            before[-1 - place], after[-1 - place] = pads[2 * place], pads[2 * place + 1]
        if any(pad > 0 for pad in pads):
            axes = [Axis(size) for size in shape_of(node)]
            write(writer, node, 0 if value is None else value, axes, (), index_of(axes))
        kept = [n + min(a, 0) + min(b, 0) for n, a, b in zip(shape, before, after, strict=True)]
        if all(size > 0 for size in kept):
            axes = [Axis(size) for size in kept]
            inner = [Affine.of(x) + max(0, -pad) for x, pad in zip(axes, before, strict=True)]
            outer = [Affine.of(x) + max(0, pad) for x, pad in zip(axes, before, strict=True)]
            write(writer, node, source, axes, tuple(inner), tuple(outer))


class SliceScatter(Family):
    """A tensor with a slice of it replaced."""

    has_epilogue = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        source: Any = node.args[0]
        piece: Any = node.args[1]
        named = dict(zip(("dim", "start", "end", "step"), node.args[2:], strict=False))
        named |= dict(node.kwargs)
        shape = shape_of(node)
        dim: Any = named.get("dim", 0)
        dim %= len(shape)
        start: Any = named.get("start") or 0
        step: Any = named.get("step", 1)
        start = max(0, min(shape[dim], start + shape[dim] if start < 0 else start))
        if shape_of(piece) != shape:
            axes = [Axis(size) for size in shape]
            write(writer, node, source, axes, index_of(axes), index_of(axes))
        axes = [Axis(size) for size in shape_of(piece)]
        to = list(index_of(axes))
        to[dim] = to[dim] * step + start
        write(writer, node, piece, axes, index_of(axes), tuple(to))


PARTS: dict[Any, Family] = {
    aten.constant_pad_nd.default: Pad(),
    aten.slice_scatter.default: SliceScatter(),
}
