"""From statements to loops: each statement in the outermost loop it can be in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pantile.lowering.kernels.index import Affine, Axis, Space, index_of
from pantile.lowering.kernels.memory import Buffer, Pointer
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import member_index
from pantile.lowering.kernels.trace import Statement, Trace
from pantile.lowering.kernels.types import dtype_of, read, shape_of, written_to
from pantile.lowering.kernels.writer import Writer

_FEW_APART = 4
"""Rows whose elements do not lie side by side, of which gcc makes short work."""

ACC = "acc"
"""The name of the anchor's value in an epilogue."""


@dataclass(frozen=True)
class Store:
    """pointer[address] = value, in the type of the memory."""

    pointer: Pointer
    address: Affine
    value: str

    @staticmethod
    def at(trace: Trace, buffer: Buffer, index: Sequence[Affine], value: str) -> Store:
        """Into an element of a buffer."""
        pointer, rest = trace.point(buffer, buffer.address(index))
        return Store(pointer, rest, trace.kept(value, buffer.cpp))

    def code(self, space: Space) -> str:
        """As C++."""
        return self.into(f"{self.pointer.name}[{space.resolve(self.address).code()}]")

    def into(self, element: str) -> str:
        """As C++, where the element has a name of its own."""
        return f"{written_to(self.pointer.buffer.cpp, element)} = {self.value};"


def written_by(stores: Sequence[Store]) -> list[Buffer]:
    """The buffers that are stored to."""
    return [store.pointer.buffer for store in stores]


def placed(
    trace: Trace,
    levels: Sequence[Sequence[Axis]],
    inner: Sequence[str],
    line: Callable[[Statement, Sequence[Affine], int], str] | None = None,
) -> list[list[str]]:
    """The statements by depth: before all loops, in the first, … `inner` are names of the last."""
    depth_of = {axis: depth for depth, axes in enumerate(levels, 1) for axis in axes}
    depth_of_name = dict.fromkeys(inner, len(levels))
    lines: list[list[str]] = [[] for _ in range(len(levels) + 1)]
    for statement in trace.statements:
        sums = [trace.space.resolve(part) for part in statement.sums]
        depths = [depth_of_name.get(name, 0) for name in statement.needs]
        depths += [depth_of[axis] for part in sums for axis in part.terms]
        depth = max(depths, default=0)
        depth_of_name[statement.name] = depth
        lines[depth].append((line or line_of)(statement, sums, depth))
    return lines


def line_of(statement: Statement, sums: Sequence[Affine], _: int) -> str:
    """A statement as C++."""
    text = statement.text.format(*(part.code() for part in sums))
    return f"const {statement.cpp} {statement.name} = {text};"


def decoded(space: Space, axis: Axis) -> str:
    """The parts of an axis that was split, computed from it."""
    if axis not in space.splits:
        return ""
    outer, inner = space.splits[axis]
    line = (
        f"const int {outer.name} = {axis.name} / {inner.size}, "
        f"{inner.name} = {axis.name} % {inner.size};"
    )
    return line + decoded(space, outer) + decoded(space, inner)


def stores_of(
    writer: Writer, kernel: Kernel, trace: Trace, axes: Sequence[Axis], order: Sequence[int] | None
) -> list[Store]:
    """What a kernel stores at one element of its anchor, whose value has the name ACC."""
    found = trace.given.get(kernel.anchor, ACC)
    trace.given[kernel.anchor] = trace.rounded(found, dtype_of(kernel.anchor))
    trace.computed |= set(kernel.members)
    stores: list[Store] = []
    if kernel.stores_anchor:
        buffer = writer.allocate(kernel.anchor, order)
        value = trace.given[kernel.anchor]
        stores.append(Store.at(trace, buffer, index_of(axes), value))
    for member in kernel.members:
        if member not in writer.plan.wanted:
            continue
        index = member_index(trace.space, kernel.maps[member], axes, shape_of(member))
        value = trace.value(member, index)
        own = None if order is None else writer.member_order(kernel, member, order)
        buffer = writer.allocate(member, own)
        stores.append(Store.at(trace, buffer, index, value))
    return stores


def epilogue(
    trace: Trace,
    stores: Sequence[Store],
    outer: Sequence[Axis],
    lane: Axis,
    first: str,
    *,
    may_be_blank: bool = False,
) -> tuple[str, str]:
    """Code before all loops; and the body of a function of outer axes that is given a row.

    The body stores `count` elements from `first` on, whose sums are in `row`. If that may be blank,
    it can be null: then zeros are stored.
    """
    space = trace.space
    rows = _Rows(space, lane, first)
    outer_leaves = [leaf for axis in outer for leaf in space.leaves(axis)]
    lines = placed(trace, [outer_leaves, space.leaves(lane)], [ACC], rows.line)
    places = [rows.element(store.pointer, store.address) for store in stores]
    kept = [store.into(place) for store, place in zip(stores, places, strict=True)]
    here = f"const int {lane.name} = {first} + j;{decoded(space, lane)}"
    each = "\nLANEWISE for (int j = 0; j < count; j++)"
    body = "".join(decoded(space, axis) for axis in outer) + "".join(rows.lines)
    if may_be_blank:
        zeros = "".join(f"{place} = 0;" for place in places)
        body += f"if (!row) {{{each} {{ {here}{zeros} }} return; }}"
    body += "".join(lines[1])
    body += f"{each} {{ const float {ACC} = row[j]; {here}{''.join(lines[2] + kept)} }}"
    return "".join(lines[0]), body


class _Rows:
    """Pointers to the rows of buffers that a loop over lanes runs along.

    A buffer of a function that is given by reference (of a lambda's closure) might be another one
    for each lane, for all gcc knows: it would gather the pointers, and scatter what is stored.
    """

    def __init__(self, space: Space, lane: Axis, first: str) -> None:
        self._space, self._lane, self._first = space, lane, first
        self._names: dict[tuple[str, str, int], str] = {}

    @property
    def lines(self) -> list[str]:
        """The pointers' declarations.

        Elements of many rows that lie apart are hundreds of addresses; to choose what to count them
        by takes gcc seconds if it knows how rows follow each other.
        """
        hides = sum(step != 1 for _, _, step in self._names) > _FEW_APART
        return [
            f"{cpp}* const {name} = {f'afresh({place})' if hides and step != 1 else place};"
            for (cpp, place, step), name in self._names.items()
        ]

    def line(self, statement: Statement, sums: Sequence[Affine], depth: int) -> str:
        """A statement, at a depth: in the innermost loop, loads run along rows."""
        pointer = statement.loaded_from
        if depth < 2 or pointer is None:
            return line_of(statement, sums, depth)
        kind = pointer.buffer.cpp
        element = read(kind, self._element(f"const {kind}", pointer.name, sums[0]))
        return f"const {statement.cpp} {statement.name} = {element};"

    def element(self, pointer: Pointer, address: Affine) -> str:
        """What is at an address, in the loop."""
        return self._element(pointer.buffer.cpp, pointer.name, self._space.resolve(address))

    def _element(self, cpp: str, pointer: str, address: Affine) -> str:
        lane = self._lane
        if lane in self._space.splits:
            return f"{pointer}[{address.code()}]"
        step = address.factor(lane)
        rest = Affine(address.constant, {a: f for a, f in address.terms.items() if a is not lane})
        row = cpp, f"{pointer} + ({rest.code()}) + {self._first} * {step}", step
        name = self._names.setdefault(row, f"row{len(self._names)}")
        return f"{name}[{'j' if step == 1 else f'j * {step}'}]"
