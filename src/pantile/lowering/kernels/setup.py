"""The setup of a program: what is computed from constant inputs alone, once for many runs.

    f0   packs weight    -> b1          setup     b1 is kept
    f1   x * b1          -> b2          each run
    f2   zeros           -> b3          each run: f3 writes into it
    f3   b3[places] += x -> b3          each run

A function belongs to it if all memory that it uses is constant: inputs that stay as they are, and
buffers that only such functions write. It needs no argument, so it gives the same every time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pantile.lowering.kernels.memory import Buffer, Place
from pantile.lowering.kernels.writer import Function


def find_setup(functions: Sequence[Function], constant: Collection[Buffer]) -> frozenset[int]:
    """The numbers of the functions of the setup; none if no input is constant."""
    chosen = set(range(len(functions))) if constant else set()
    changing: set[Buffer] = set()
    before = -1
    while len(chosen) != before:
        before = len(chosen)
        for number in sorted(chosen):
            function = functions[number]
            if not all(
                buffer in constant or (buffer.place is Place.ARENA and buffer not in changing)
                for buffer in function.buffers
            ):
                chosen.remove(number)
                changing |= function.writes
    return frozenset(chosen)


def keep_results(functions: Sequence[Function], setup: Collection[int]) -> int:
    """Give the results of the setup memory that nothing else uses; the bytes of it."""
    total = 0
    for number in sorted(setup):
        for buffer in functions[number].buffers:
            if buffer.place is Place.ARENA:
                buffer.place, buffer.offset = Place.KEPT, total
                total += buffer.bytes
    return total


def inputs_of(functions: Sequence[Function], setup: Collection[int]) -> list[Buffer]:
    """The inputs that the setup reads."""
    used = {buffer for number in setup for buffer in functions[number].buffers}
    found = (buffer for buffer in used if buffer.place is Place.INPUT)
    return sorted(found, key=lambda buffer: buffer.number)
