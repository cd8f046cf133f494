"""The records of a program for any micro-batch, from two captures of different batch sizes.

captured with 8   [8, 128, 1024]  [1024, 1024]       every size is  a + b * batch
captured with 16  [16, 128, 1024] [2048, 1024]   ->  with 2: [2, 128, 1024] [256, 1024]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pantile.errors import Error
from pantile.machine.records import ProgramRecord, TensorRecord


def for_any_batch(
    first: ProgramRecord, one: int, second: ProgramRecord, two: int
) -> Callable[[int], ProgramRecord]:
    """A function from the micro-batch to the records."""
    same = [op.op for op in first.ops] == [op.op for op in second.ops]
    if one == two or not same or len(first.tensors) != len(second.tensors):
        raise Error(
            f"the program has other ops with a micro-batch of {two} than with {one}",
            fix="plan each micro-batch by itself, with --micro-batch",
        )
    pairs = list(zip(first.tensors, second.tensors, strict=True))

    def with_batch(batch: int) -> ProgramRecord:
        tensors = tuple(_between(a, one, b, two, batch) for a, b in pairs)
        return replace(first, tensors=tensors)

    return with_batch


def _between(a: TensorRecord, one: int, b: TensorRecord, two: int, batch: int) -> TensorRecord:
    shape = _line(a.shape, one, b.shape, two, batch)
    return replace(a, shape=shape, strides=_line(a.strides, one, b.strides, two, batch))


def _line(
    a: tuple[int, ...], one: int, b: tuple[int, ...], two: int, batch: int
) -> tuple[int, ...]:
    return tuple(
        x if x == y else round(x + (y - x) * (batch - one) / (two - one))
        for x, y in zip(a, b, strict=True)
    )
