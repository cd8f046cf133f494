"""Buffers, and their places in one arena.

kernel     0    1    2    3             arena
a          ████████                     [ a | b ]
b               ████████                [ c |   ]      c takes the place of a
c                    ████████
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from pantile.lowering.kernels.index import Affine

ALIGN = 64
BYTES = {
    "float": 4,
    "double": 8,
    "i64": 8,
    "i32": 4,
    "short": 2,
    "bf16": 2,
    "fp16": 2,
    "signed char": 1,
    "u8": 1,
    "bool": 1,
}


class Place(Enum):
    """Where a buffer is."""

    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"
    KEPT = "kept"
    """Written by the setup, and not again."""
    MADE = "made"
    """Torch's: a result of an operator that is called outside."""


@dataclass(eq=False)
class Buffer:
    """Memory of one value."""

    name: str
    cpp: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    place: Place
    number: int = 0
    """Of the input, the output or what was made."""
    size: int = 0
    """In elements."""
    offset: int = 0
    """In the arena, or in what is kept, in bytes."""
    within: Buffer | None = None
    """The buffer it is a part of: a piece of a concatenation."""
    start: int = 0
    """Where in that it begins, in elements."""
    replaces: Buffer | None = None
    """The buffer whose place in the arena it takes: its kernel reads that where it writes."""

    @property
    def root(self) -> Buffer:
        """The buffer that has a place of its own."""
        return self if self.within is None else self.within.root

    @property
    def home(self) -> Buffer:
        """The buffer whose place it has."""
        root = self.root
        return root if root.replaces is None else root.replaces

    @property
    def start_in_root(self) -> int:
        """Where it begins in the root, in elements."""
        return self.start + (0 if self.within is None else self.within.start_in_root)

    def address(self, index: Sequence[Affine]) -> Affine:
        """Where an element is, counted in elements."""
        result = Affine()
        for part, stride in zip(index, self.strides, strict=True):
            result += part * stride
        return result

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return -(-self.size * BYTES[self.cpp] // ALIGN) * ALIGN


@dataclass(frozen=True)
class Pointer:
    """A place in a buffer, given to a kernel: equal kernels at other places are one function."""

    buffer: Buffer
    offset: int = 0

    @property
    def name(self) -> str:
        """What the kernel calls it."""
        return f"{self.buffer.name}_{self.offset}" if self.offset else self.buffer.name

    @staticmethod
    def to(buffer: Buffer, address: Affine) -> tuple[Pointer, Affine]:
        """The constant part of an address as a pointer, and the rest."""
        return Pointer(buffer, address.constant), address + -address.constant


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides without gaps; `order` names the dims from the outermost to the innermost."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(range(len(shape)) if order is None else order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last, both included."""
    if not prod(shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@dataclass(frozen=True)
class Life:
    """A buffer, from the first to the last kernel that uses it, both included."""

    buffer: Buffer
    first: int
    last: int


def shared_places(lives: Sequence[Life], over: Mapping[Buffer, Sequence[Buffer]]) -> list[Life]:
    """Lives in which a buffer that may be written over another one is a part of that one's.

    `over` says which buffers each one may take the place of, if they are not used any more.
    """
    merged: dict[Buffer, Life] = {}
    homes: dict[Buffer, Buffer] = {}
    for life in sorted(lives, key=lambda life: life.first):
        buffer = life.buffer
        for old in over.get(buffer, ()):
            home = homes.get(old)
            if home is None or home.bytes != buffer.bytes or merged[home].last != life.first:
                continue
            buffer.replaces = homes[buffer] = homes.pop(old)
            merged[home] = Life(home, merged[home].first, life.last)
            break
        else:
            homes[buffer] = buffer
            merged[buffer] = life
    return list(merged.values())


def place_buffers(lives: Sequence[Life]) -> int:
    """Give every buffer an offset, first fit; the bytes of the arena.

    By first use, the largest first, or the longest life first: what takes least memory.
    """
    orders = (
        sorted(lives, key=lambda life: (life.first, -life.buffer.bytes)),
        sorted(lives, key=lambda life: (-life.buffer.bytes, life.first)),
        sorted(lives, key=lambda life: (life.first - life.last, -life.buffer.bytes)),
    )
    placed = [_fitted(order) for order in orders]
    peak, offsets = min(placed, key=lambda found: found[0])
    for buffer, offset in offsets.items():
        buffer.offset = offset
    return peak


def _fitted(lives: Sequence[Life]) -> tuple[int, dict[Buffer, int]]:
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[Buffer, int] = {}
    peak = 0
    for life in lives:
        size = life.buffer.bytes
        busy = sorted(
            (a, b) for a, b, born, died in placed if died >= life.first and born <= life.last
        )
        offset = 0
        for begin, end in busy:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[life.buffer] = offset
        placed.append((offset, offset + size, life.first, life.last))
        peak = max(peak, offset + size)
    return peak, offsets
