"""Mutated model files: an error that says so, never a crash, a hang or a wrong kind of error."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pantile.errors import Error
from pantile.paddle.description import read_program
from pantile.paddle.parameters import read_parameters
from pantile.paddle.pir import read_pir
from pantile.paddle.saved_model import stored_names

DATA = Path(__file__).parent / "data"
PROGRAM, PARAMETERS = (DATA / f"small.{kind}" for kind in ("pdmodel", "pdiparams"))
NEW_PROGRAM = DATA / "small3.json"


def _flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def _remove(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.randint(1, 64)]


def _repeat(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    data[start:start] = data[start : start + draw.randint(1, 64)]


def _enlarge(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    data[start : start + 9] = b"\xff" * 8 + b"\x7f"


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _cut,
    _remove,
    _repeat,
    _enlarge,
)


def _read_mutated(count: int, seed: int) -> tuple[int, float]:
    """Read so many mutants; how many were refused, and the longest time one took."""
    draw = random.Random(seed)
    program, names = PROGRAM.read_bytes(), stored_names(read_program(PROGRAM.read_bytes()).main)
    readers: list[tuple[bytes, Callable[[bytes], object]]] = [
        (program, lambda data: stored_names(read_program(data).main)),
        (PARAMETERS.read_bytes(), lambda data: read_parameters(data, names)),
        (NEW_PROGRAM.read_bytes(), lambda data: stored_names(read_pir(data).main)),
    ]
    refused, without_fix, slowest = 0, 0, 0.0
    for turn in range(count):
        original, read = readers[turn % 3]
        mutant = bytearray(original)
        draw.choice(_MUTATIONS)(mutant, draw)
        begin = time.process_time()
        try:
            read(bytes(mutant))
        except Error as error:
            refused += 1
            without_fix += not error.fix
        slowest = max(slowest, time.process_time() - begin)
    assert not without_fix
    return refused, slowest


def _check(count: int, seed: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, slowest = _read_mutated(count, seed)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert refused > count // 4
    assert slowest < 1.0
    assert grown < 64 * 1024  # KiB


def test_two_thousand_mutants_are_read_or_refused() -> None:
    _check(2_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutants_are_read_or_refused() -> None:
    _check(100_000, seed=2)
