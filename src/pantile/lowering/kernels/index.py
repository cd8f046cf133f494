"""Index algebra: every value is a function of loop variables, and a view only rewrites the index.

    y = x.reshape(6, 4).t()        y[i, j] is x[j / 2, j % 2 * 4 + i]

An index is a sum of loop variables times integers. Where a reshape cuts through a loop, as j above,
the loop is split in two, and the quotient and the remainder are sums again:

    j  ->  2 * jo + ji             x[jo, ji * 4 + i]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.sharing import opened

_numbers = count()


class Axis:
    """A loop variable from 0 to size - 1. Two axes are equal if they are the same object."""

    __slots__ = ("is_lane", "name", "number", "size")

    def __init__(self, size: int, name: str | None = None) -> None:
        self.size = size
        self.is_lane = False
        """Do vectors run along it? The compiler must know then how far its steps are apart."""
        self.number = next(_numbers)
        self.name = name or f"x{self.number}"

    def __repr__(self) -> str:
        return f"{self.name}<{self.size}"


class Affine:
    """constant + sum of factor * axis."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int = 0, terms: Mapping[Axis, int] | None = None) -> None:
        self.constant = constant
        self.terms = {axis: factor for axis, factor in (terms or {}).items() if factor}

    @staticmethod
    def of(axis: Axis) -> Affine:
        """The axis itself; an axis of one step is always zero."""
        return Affine(0, {axis: 1}) if axis.size > 1 else Affine()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms)
        terms = dict(self.terms)
        for axis, factor in other.terms.items():
            terms[axis] = terms.get(axis, 0) + factor
        return Affine(self.constant + other.constant, terms)

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.constant * factor, {a: f * factor for a, f in self.terms.items()})

    @property
    def key(self) -> tuple[int, frozenset[tuple[Axis, int]]]:
        """Equal for equal sums."""
        return self.constant, frozenset(self.terms.items())

    def factor(self, axis: Axis) -> int:
        """By how much the sum grows with an axis."""
        return self.terms.get(axis, 0)

    def code(self) -> str:
        """As C++."""
        parts = [_term(axis, factor) for axis, factor in self.terms.items()]
        if self.constant or not parts:
            parts.append(opened(self.constant) if self.constant else "0")
        return " + ".join(parts)

    def __repr__(self) -> str:
        return self.code()


def _term(axis: Axis, factor: int) -> str:
    if factor == 1:
        return axis.name
    return f"{axis.name} * {factor if axis.is_lane else opened(factor)}"


Index = tuple[Affine, ...]


def index_of(axes: Iterable[Axis]) -> Index:
    """The index whose parts are these axes."""
    return tuple(Affine.of(axis) for axis in axes)


def same_index(a: Sequence[Affine], b: Sequence[Affine]) -> bool:
    """Do two indices always agree?"""
    return len(a) == len(b) and all(x.key == y.key for x, y in zip(a, b, strict=True))


class Space:
    """The axes of one kernel, and how they were split."""

    def __init__(self) -> None:
        self.splits: dict[Axis, tuple[Axis, Axis]] = {}

    def resolve(self, index: Affine) -> Affine:
        """The same sum in terms of axes that are not split."""
        while any(axis in self.splits for axis in index.terms):
            terms: dict[Axis, int] = {}
            for axis, factor in index.terms.items():
                if axis in self.splits:
                    outer, inner = self.splits[axis]
                    terms[outer] = terms.get(outer, 0) + factor * inner.size
                    terms[inner] = terms.get(inner, 0) + factor
                else:
                    terms[axis] = terms.get(axis, 0) + factor
            index = Affine(index.constant, terms)
        return index

    def resolved(self, index: Sequence[Affine]) -> Index:
        """The same for every part of an index."""
        return tuple(self.resolve(part) for part in index)

    def leaves(self, axis: Axis) -> list[Axis]:
        """What an axis was split into, outermost first."""
        if axis not in self.splits:
            return [axis]
        outer, inner = self.splits[axis]
        return [*self.leaves(outer), *self.leaves(inner)]

    def divmod(self, index: Affine, size: int) -> tuple[Affine, Affine]:
        """Quotient and remainder; loops are split where they must be."""
        index = self.resolve(index)
        quotient, remainder = Affine(index.constant // size), Affine(index.constant % size)
        most = remainder.constant
        for axis, factor in index.terms.items():
            if factor % size == 0:
                quotient += Affine(0, {axis: factor // size})
            elif 0 < factor * (axis.size - 1) < size:
                remainder += Affine(0, {axis: factor})
                most += factor * (axis.size - 1)
            elif factor > 0 and size % factor == 0:
                outer, inner = self._split(axis, size // factor)
                quotient += Affine.of(outer)
                remainder += Affine.of(inner) * factor
                most += factor * (inner.size - 1)
            else:
                raise Refused(f"a reshape that cuts {index} at {size}")
        if most >= size:
            raise Refused(f"a reshape that carries: {index} at {size}")
        return quotient, remainder

    def _split(self, axis: Axis, inner: int) -> tuple[Axis, Axis]:
        if axis.size % inner:
            raise Refused(f"a loop of {axis.size} cut at {inner}")
        pair = Axis(axis.size // inner, f"{axis.name}o"), Axis(inner, f"{axis.name}i")
        self.splits[axis] = pair
        return pair

    def reshape(self, index: Sequence[Affine], new: Sequence[int], old: Sequence[int]) -> Index:
        """The index into a tensor of shape `old`, for an index of its reshape to `new`."""
        result: list[Affine] = []
        for news, olds in _groups(new, old):
            linear, step = Affine(), 1
            for dim in reversed(news):
                linear += index[dim] * step
                step *= new[dim]
            parts: list[Affine] = []
            for dim in reversed(olds[1:]):
                linear, part = self.divmod(linear, old[dim])
                parts.append(part)
            if olds:
                parts.append(linear)
            result += reversed(parts)
        return tuple(result)


def _groups(new: Sequence[int], old: Sequence[int]) -> Iterable[tuple[list[int], list[int]]]:
    """The dims that belong together: runs of both shapes with the same product."""
    i = j = 0
    while i < len(new) or j < len(old):
        news, olds = [], []
        a = b = 1
        if i < len(new):
            a, i, news = new[i], i + 1, [i]
        if j < len(old):
            b, j, olds = old[j], j + 1, [j]
        while a != b:
            if a < b:
                a, i = a * new[i], i + 1
                news.append(i - 1)
            else:
                b, j = b * old[j], j + 1
                olds.append(j - 1)
        yield news, olds
