"""Values written or added at computed places, in any dims.

    to = whole;  to[place of i, j] += value[i, j]        one after another: places may be equal

Threads divide a dim in which the place is not computed; if there is none, one does it all. Numbers
of 16 bits are added up as floats, and rounded when all are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import Store, placed
from pantile.lowering.kernels.expressions import where_indexed
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, index_of
from pantile.lowering.kernels.loops import loop, nest, shared_loop
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.elementwise import write
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import HALVES, cpp, dtype_of, shape_of, written_to
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten


@dataclass(frozen=True)
class _Scatter:
    """What is written where: places by dim of the whole, each an index tensor."""

    places: Mapping[int, fx.Node]
    values: Any
    mask: fx.Node | None
    adds: bool
    axes: list[Axis]
    """Of the values."""
    read: list[Axis]
    """Those that index tensors have."""
    free: Mapping[int, Axis]
    """By dim of the whole, where the place is not computed."""


def _by_tensors(node: fx.Node) -> _Scatter:
    """index_put, with or without a mask."""
    masked = node.target is aten._unsafe_masked_index_put_accumulate.default
    whole, *rest = node.args
    mask: Any = rest.pop(0) if masked else None
    tensors, values = rest[:2]
    adds = masked or bool(rest[2] if len(rest) > 2 else node.kwargs.get("accumulate", False))
    assert isinstance(tensors, (list, tuple)) and isinstance(whole, fx.Node)
    found: dict[int, Any] = {dim: x for dim, x in enumerate(tensors) if x is not None}
    if any(dtype_of(x) not in (torch.int64, torch.int32) for x in found.values()):
        raise Refused("a scatter by a mask")
    first, rank = where_indexed(tensors)
    shapes = [(*(1,) * rank, *shape_of(x))[-rank:] if rank else () for x in found.values()]
    read = [Axis(max(sizes)) for sizes in zip(*shapes, strict=True)]
    sizes = shape_of(whole)
    free = {dim: Axis(size) for dim, size in enumerate(sizes) if dim not in found}
    others = list(free.values())
    return _Scatter(
        found, values, mask, adds, [*others[:first], *read, *others[first:]], read, free
    )


def _along_dim(node: fx.Node) -> _Scatter:
    """scatter and scatter_add."""
    whole, dim, places, values = node.args[:4]
    assert isinstance(places, fx.Node) and isinstance(dim, int) and isinstance(whole, fx.Node)
    axes = [Axis(size) for size in shape_of(places)]
    if not axes:
        raise Refused("a scatter into a single number")
    dim %= len(axes)
    free = {d: axis for d, axis in enumerate(axes) if d != dim}
    adds = node.target is aten.scatter_add.default
    return _Scatter({dim: places}, values, None, adds, axes, axes, free)


class IndexPut(Family):
    """Writes the whole as it was, then the values."""

    has_epilogue = False

    def check(self, node: fx.Node) -> None:
        """Values of the type of the whole, at places that are numbers."""
        found = self._scatter(node)
        values = found.values
        if dtype_of(node) is torch.bool and found.adds:
            raise Refused("a sum of truth at places")
        if isinstance(values, fx.Node) and dtype_of(values) is not dtype_of(node):
            raise Refused("a scatter of another type")

    def _scatter(self, node: fx.Node) -> _Scatter:
        scatters = (aten.scatter_add.default, aten.scatter.src)
        return _along_dim(node) if node.target in scatters else _by_tensors(node)

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernels."""
        node = kernel.anchor
        axes = [Axis(size) for size in shape_of(node)]
        result = buffer = writer.allocate(node)
        found = self._scatter(node)
        if found.adds and dtype_of(node) in HALVES:
            buffer = writer.temporary(shape_of(node), None, cpp(dtype_of(node)))
        note = f"before {node.name}"
        write(writer, (buffer, index_of(axes)), node.args[0], dtype_of(node), axes, note)
        trace = Trace(writer.plan)
        chosen, line = _statements(trace, found, node, buffer)
        lead = [leaf for axis in found.read for leaf in trace.space.leaves(axis)]
        lead = [leaf for leaf in lead if leaf.size > 1]
        last = [leaf for axis in found.free.values() for leaf in trace.space.leaves(axis)]
        last = [leaf for leaf in last if leaf.size > 1]
        # Along scattered dims the index tensor has the free axes too.
        lead = [leaf for leaf in lead if leaf not in last]
        lines = placed(trace, [[leaf] for leaf in [*lead, *last]], [])
        text = "".join(lines[0])
        for depth, leaf in enumerate([*lead, *last], 1):
            shared = bool(last) and depth == len(lead) + len(last)
            # The places along the last axis are all different.
            head = f"LANEWISE {shared_loop(leaf)}" if shared else loop(leaf)
            text += f"\n{head} {{" + "".join(lines[depth])
        text += f" if ({chosen}) {line}" + "}" * (len(lead) + len(last))
        text = text if last else f"if (t == 0) {{ {text} }}"
        writer.function(text, trace.used, f"at places {node.name}", writes=[buffer])
        if buffer is not result:
            _round(writer, buffer, result, f"rounded {node.name}")


def _round(writer: Writer, wide: Buffer, to: Buffer, note: str) -> None:
    """A kernel: one buffer to another of a narrower type."""
    trace = Trace(writer.plan)
    axes = [Axis(size) for size in wide.shape]
    pointer, rest = trace.point(wide, wide.address(index_of(axes)))
    value = trace.state(wide.cpp, f"{pointer.name}[{{0}}]", (), [rest], pointer)
    store = Store.at(trace, to, index_of(axes), value)
    writer.function(nest(trace, axes, [store]), trace.used, note, writes=[to])


def _statements(trace: Trace, found: _Scatter, node: fx.Node, buffer: Buffer) -> tuple[str, str]:
    """The condition, and the statement that writes one value."""
    dtype = dtype_of(node)
    index = index_of(found.axes)
    chosen = "true" if found.mask is None else trace.operand(found.mask, index, torch.bool)
    value = trace.operand(found.values, index, dtype)
    shape = shape_of(node)
    steps = ""
    for dim, places in found.places.items():
        place = trace.operand(places, index_of(found.read), torch.int64)
        call = f"bounded({place}, {shape[dim]}, failed)"
        text = call if found.mask is None else f"{chosen} ? {call} : 0"
        needs = [place] if found.mask is None else [place, chosen]
        steps += f" + {trace.state('i64', text, needs)} * {buffer.strides[dim]}"
    fixed = [
        Affine.of(found.free[dim]) if dim in found.free else Affine() for dim in range(len(shape))
    ]
    pointer, rest = trace.point(buffer, buffer.address(fixed))
    sign = "+=" if found.adds else "="
    address = trace.space.resolve(rest).code()
    element = written_to(buffer.cpp, f"{pointer.name}[{address}{steps}]")
    return chosen, f"{element} {sign} {trace.kept(value, buffer.cpp)};"


INDEX_PUTS = (
    aten.index_put.default,
    aten._unsafe_masked_index_put_accumulate.default,
    aten._unsafe_index_put.default,
    aten.scatter_add.default,
    aten.scatter.src,
)
