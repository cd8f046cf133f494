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
from pantile.paddle.saved_model import stored_names

DATA = Path(__file__).parent / "data"
PROGRAM, PARAMETERS = (DATA / f"small.{kind}" for kind in ("pdmodel", "pdiparams"))


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
    program, parameters = PROGRAM.read_bytes(), PARAMETERS.read_bytes()
    names = stored_names(read_program(program).main)
    refused, slowest = 0, 0.0
    for turn in range(count):
        mutant = bytearray(parameters if turn % 3 == 2 else program)
        draw.choice(_MUTATIONS)(mutant, draw)
        begin = time.process_time()
        try:
            if turn % 3 == 2:
                read_parameters(bytes(mutant), names)
            else:
                stored_names(read_program(bytes(mutant)).main)
        except Error as error:
            assert error.fix, error
            refused += 1
        slowest = max(slowest, time.process_time() - begin)
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
def test_a_hundred_thousand_mutants_are_read_or_refused() -> None:
    _check(100_000, seed=2)
