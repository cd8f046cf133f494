"""Kernels that compute each element by itself."""

from __future__ import annotations

from torch import fx

from pantile.lowering.kernels.emission import Store, stores_of
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis, index_of
from pantile.lowering.kernels.loops import nest
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import shape_of
from pantile.lowering.kernels.writer import Writer


class Elementwise(Family):
    """Loops over the elements."""

    reads_apart = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        trace = Trace(writer.plan, computed={kernel.anchor})
        axes = [Axis(size) for size in shape_of(kernel.anchor)]
        trace.given[kernel.anchor] = trace.value(kernel.anchor, index_of(axes))
        stores = stores_of(writer, kernel, trace, axes, _order(writer, kernel.anchor))
        writer.function(nest(trace, axes, stores), trace.used, f"each {kernel.anchor.name}")


def _order(writer: Writer, node: fx.Node) -> list[int] | None:
    """The dims in the order of the largest value that is read, if that has the same shape."""
    if writer.images and len(shape_of(node)) == 4:
        return None
    for leaf in writer.plan.leaves(node):
        buffer = writer.plan.buffer(leaf)
        if buffer is not None and buffer.shape == shape_of(node):
            strides = buffer.strides
            return sorted(range(len(strides)), key=lambda dim: -strides[dim])
    return None


def copy(writer: Writer, node: fx.Node, buffer: Buffer, note: str) -> None:
    """Write a value into memory of any layout."""
    trace = Trace(writer.plan)
    axes = [Axis(size) for size in shape_of(node)]
    value = trace.value(node, index_of(axes))
    store = Store.at(trace, buffer, index_of(axes), value)
    writer.function(nest(trace, axes, [store]), trace.used, f"{note} {node.name}")
