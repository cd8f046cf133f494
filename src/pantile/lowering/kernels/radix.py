"""Which element of one tensor belongs to which of another.

Each dim of the one is made of dims of the other, like a number of digits.

    anchor [6, 4]        value [2, 3, 4]        radix ((0, 1), (2,))
"""

from __future__ import annotations

from collections.abc import Sequence

from pantile.lowering.kernels.index import Affine, Axis, Index, Space

Radix = tuple[tuple[int, ...], ...]
"""For every dim of the anchor the dims of the value, outermost first."""


def radix_of(index: Sequence[Affine], shape: Sequence[int], axes: Sequence[Axis]) -> Radix | None:
    """The radix of an index into an anchor, given by the axes of a value; None if there is none."""
    places = {axis: dim for dim, axis in enumerate(axes)}
    used: set[Axis] = set()
    radix: list[tuple[int, ...]] = []
    for part, size in zip(index, shape, strict=True):
        if part.constant:
            return None
        digits: list[int] = []
        step = 1
        for axis, factor in sorted(part.terms.items(), key=lambda term: term[1]):
            if factor != step or axis not in places or axis in used:
                return None
            used.add(axis)
            digits.append(places[axis])
            step *= axis.size
        if step != size:
            return None
        radix.append(tuple(reversed(digits)))
    if any(axis.size > 1 and axis not in used for axis in axes):
        return None
    return tuple(radix)


def member_index(space: Space, radix: Radix, axes: Sequence[Axis], shape: Sequence[int]) -> Index:
    """The index of a value, for the axes of its anchor."""
    index = [Affine()] * len(shape)
    for axis, digits in zip(axes, radix, strict=True):
        rest = Affine.of(axis)
        for dim in reversed(digits[1:]):
            rest, index[dim] = space.divmod(rest, shape[dim])
        if digits:
            index[digits[0]] = rest
    return space.resolved(index)
