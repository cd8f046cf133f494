"""A nest of loops around statements: adjacent loops that always go together become one.

for i in 0..3, j in 0..7: y[8 * i + j] = x[8 * i + j]       ->       for k in 0..31: y[k] = x[k]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pantile.lowering.kernels.emission import Store, placed
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.sharing import opened
from pantile.lowering.kernels.trace import Trace

_STEP = 16
"""Long loops are divided between threads in steps of a cache line of floats."""
_SHORT = 16
"""Shorter loops are left to the compiler with their size."""
_LONG_LANE = 128
"""So many steps along vectors, and a multiple of all vectors: then their number may be open."""


def nest(trace: Trace, axes: Sequence[Axis], stores: Sequence[Store]) -> str:
    """Loops over all axes, the one that the first store runs along innermost."""
    leaves = [leaf for axis in axes for leaf in trace.space.leaves(axis) if leaf.size > 1]
    stores = [replace(s, address=trace.space.resolve(s.address)) for s in stores]
    first = stores[0].address
    leaves.sort(key=lambda axis: -first.factor(axis))
    leaves, stores = collapsed(trace, leaves, stores)
    turned = _transposition(trace, leaves, stores)
    if turned is not None:
        return turned
    if leaves:
        leaves[-1].is_lane = True
    lines = placed(trace, [[axis] for axis in leaves], [])
    text = "".join(lines[0])
    for depth, axis in enumerate(leaves):
        last = depth == len(leaves) - 1
        text += "\nLANEWISE " if last else "\n"
        text += (shared_loop(axis) if depth == 0 else loop(axis)) + " {" + "".join(lines[depth + 1])
    text += "".join(store.code(trace.space) for store in stores) + "}" * len(leaves)
    return text if leaves else f"if (t == 0) {{ {text} }}"


def _transposition(trace: Trace, leaves: list[Axis], stores: Sequence[Store]) -> str | None:
    """Squares of vectors, where nothing is done but to turn rows of floats into columns."""
    if (len(stores), len(trace.statements)) != (1, 1) or len(leaves) < 2:
        return None
    (store,), (load,), inner = stores, trace.statements, leaves[-1]
    read = trace.space.resolve(load.sums[0]) if load.loaded_from else Affine()
    side = next((leaf for leaf in leaves[:-1] if read.factor(leaf) == 1), None)
    if load.loaded_from is None or load.name != store.value or side is None:
        return None
    kinds = {load.loaded_from.buffer.cpp, store.pointer.buffer.cpp}
    rows = read.factor(inner), store.address.factor(side)
    if kinds != {"float"} or store.address.factor(inner) != 1 or min(rows) < _SHORT:
        return None
    if side.size < _SHORT or inner.size < _SHORT // 2:
        return None
    around = [leaf for leaf in leaves if leaf not in (side, inner)]
    loops = [shared_loop(axis) if axis is around[0] else loop(axis) for axis in around]
    places = [Affine(a.constant, {x: a.factor(x) for x in around}) for a in (read, store.address)]
    begin, to = (place.code() for place in places)
    sizes = f"{opened(side.size)}, {opened(inner.size)}, {'0, 1' if around else 't, T'}"
    return (
        "".join(f"\n{text}" for text in loops)
        + f"\ntransposed_copy({load.loaded_from.name} + {begin}, {opened(rows[0])},"
        f" {store.pointer.name} + {to}, {opened(rows[1])}, {sizes});"
    )


def loop(axis: Axis) -> str:
    """All of an axis."""
    n, name = axis.size, axis.name
    size = opened(n) if n >= _SHORT else str(n)
    if axis.is_lane:
        size = f"{opened(n // 16)} * 16" if n >= _LONG_LANE and n % 16 == 0 else str(n)
    return f"for (int {name} = 0; {name} < {size}; {name}++)"


def shared_loop(axis: Axis) -> str:
    """The part of an axis that is this thread's."""
    n, name = axis.size, axis.name
    part = f"{opened(n)}, {opened(1 if n < 64 * _STEP else _STEP)}"
    begin, end = f"part({part}, t, T)", f"part({part}, t + 1, T)"
    return f"for (int {name} = {begin}, end_{name} = {end}; {name} < end_{name}; {name}++)"


def collapsed(
    trace: Trace, leaves: list[Axis], stores: Sequence[Store] = ()
) -> tuple[list[Axis], list[Store]]:
    """The same loops, fewer of them; the statements of the trace are changed to fit."""
    sums = [trace.space.resolve(part) for s in trace.statements for part in s.sums]
    sums += [store.address for store in stores]
    place = 0
    while place + 1 < len(leaves):
        outer, inner = leaves[place], leaves[place + 1]
        if all(part.factor(outer) == part.factor(inner) * inner.size for part in sums):
            joined = Axis(outer.size * inner.size)
            sums = [_joined(part, outer, inner, joined) for part in sums]
            leaves[place : place + 2] = [joined]
            place = max(0, place - 1)
        else:
            place += 1
    given = iter(sums)
    trace.statements[:] = [
        replace(s, sums=tuple(next(given) for _ in s.sums)) for s in trace.statements
    ]
    return leaves, [replace(store, address=next(given)) for store in stores]


def _joined(part: Affine, outer: Axis, inner: Axis, joined: Axis) -> Affine:
    terms = {axis: f for axis, f in part.terms.items() if axis not in (outer, inner)}
    return Affine(part.constant, {**terms, joined: part.factor(inner)})
