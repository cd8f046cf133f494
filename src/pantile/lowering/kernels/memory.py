"""Buffers, and their places in one arena.

kernel     0    1    2    3             arena
a          ████████                     [ a | b ]
b               ████████                [ c |   ]      c takes the place of a
c                    ████████
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(eq=False)
class Buffer:
    """Memory of one value."""

    name: str
    cpp: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    place: Place
    number: int = 0
    """Of the input or output."""
    size: int = 0
    """In elements."""
    offset: int = 0
    """In the arena, in bytes."""
    within: Buffer | None = None
    """The buffer it is a part of: a piece of a concatenation."""
    start: int = 0
    """Where in that it begins, in elements."""

    @property
    def root(self) -> Buffer:
        """The buffer that has a place of its own."""
        return self if self.within is None else self.within.root

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


def place_buffers(lives: Iterable[tuple[Buffer, int, int]]) -> int:
    """Give every buffer an offset, first fit by first use; the bytes of the arena.

    A buffer lives from the first to the last kernel that uses it, both included.
    """
    placed: list[tuple[int, int, int, int]] = []
    peak = 0
    for buffer, first, last in sorted(lives, key=lambda life: (life[1], -life[0].bytes)):
        busy = sorted((a, b) for a, b, born, died in placed if died >= first and born <= last)
        offset = 0
        for begin, end in busy:
            if offset + buffer.bytes <= begin:
                break
            offset = max(offset, end)
        buffer.offset = offset
        placed.append((offset, offset + buffer.bytes, first, last))
        peak = max(peak, offset + buffer.bytes)
    return peak
