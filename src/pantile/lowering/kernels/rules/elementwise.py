"""Kernels that compute each element by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import Store, stores_of, written_by
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, Index, index_of
from pantile.lowering.kernels.loops import nest
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.memory import Place as MemoryPlace
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer

Place = tuple[Buffer, Index]
"""A buffer, and where in it."""


class Elementwise(Family):
    """Loops over the elements."""

    reads_apart = False

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        trace = Trace(writer.plan, computed={kernel.anchor})
        axes = [Axis(size) for size in shape_of(kernel.anchor)]
        trace.given[kernel.anchor] = trace.value(kernel.anchor, index_of(axes))
        stores = stores_of(writer, kernel, trace, axes, _order(writer, kernel.anchor))
        over = in_place(writer, trace, stores)
        text = nest(trace, axes, stores)
        note = f"each {kernel.anchor.name}"
        writer.function(text, trace.used, note, over, written_by(stores))


def in_place(
    writer: Writer,
    trace: Trace,
    stores: Sequence[Store],
    besides: Sequence[tuple[Buffer, Affine | None]] = (),
) -> list[tuple[Buffer, Buffer]]:
    """Which results may be written over which values: those read where the result is written.

    All that an element needs is read before anything of it is stored. `besides`: what else the
    kernel reads, and at which address; None if that is not just where it stores.
    """
    places: dict[Buffer, set[Any]] = {}
    for buffer, place in besides:
        key = None if place is None or buffer.within is not None else trace.space.resolve(place).key
        places.setdefault(buffer.root, set()).add(key)
    for read in trace.reads:
        buffer = writer.plan.buffers[read.node]
        address = trace.space.resolve(buffer.address(trace.space.resolved(read.index)))
        whole = read.whole or buffer.within is not None
        places.setdefault(buffer.root, set()).add(None if whole else address.key)
    return [
        (store.pointer.buffer, old)
        for store in stores
        for old, read_at in places.items()
        if _are_alike(store.pointer.buffer, old)
        and read_at == {trace.space.resolve(store.address).key}
    ]


def _are_alike(new: Buffer, old: Buffer) -> bool:
    places = {new.place, old.place}
    alike = (new.cpp, new.size, new.within) == (old.cpp, old.size, None)
    return new is not old and alike and places == {MemoryPlace.ARENA}


def _order(writer: Writer, node: fx.Node) -> list[int] | None:
    """The dims in the order of the largest value that is read, if that has the same shape."""
    if writer.images and len(shape_of(node)) == 4:
        return None
    for leaf in sorted(writer.plan.leaves(node)):
        buffer = writer.plan.buffer(leaf)
        if buffer is not None and buffer.shape == shape_of(node):
            strides = buffer.strides
            return sorted(range(len(strides)), key=lambda dim: -strides[dim])
    return None


def write(
    writer: Writer,
    to: Place,
    value: Any,
    dtype: torch.dtype,
    axes: Sequence[Axis],
    note: str,
    source: Index | None = None,
) -> None:
    """A kernel: to = value[source] over axes; without a source the axes are the index."""
    trace = Trace(writer.plan)
    name = trace.operand(value, index_of(axes) if source is None else source, dtype)
    store = Store.at(trace, *to, name)
    writer.function(nest(trace, axes, [store]), trace.used, note, writes=[to[0]])


def copy(writer: Writer, node: fx.Node, buffer: Buffer, note: str) -> None:
    """Write a value into memory of any layout."""
    axes = [Axis(size) for size in shape_of(node)]
    write(writer, (buffer, index_of(axes)), node, dtype_of(node), axes, f"{note} {node.name}")
