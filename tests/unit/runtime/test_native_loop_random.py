"""The seeds a device loop gives to its programs: a formula, restorable, and without patterns."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.loop_programs import plan, program, schedule

from pantile.errors import StateError
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import ResultSpec, Seeds, Threads

WORD = (1 << 64) - 1


def seeded(
    count: int, iterations: int, replicas: int = 1, *, first_replica: int = 0, workers: int = 1
) -> Loop:
    return Loop(
        plan(
            program("SEEDS", outputs=1),
            [Seeds(count)],
            results=[ResultSpec("seeds", (count,), torch.int64)],
            schedule=schedule(iterations, 1, replicas),
            threads=Threads(workers=workers),
            first_replica=first_replica,
        )
    )


def drawn(loop: Loop, **part: int) -> torch.Tensor:
    [seeds] = destinations = [torch.zeros_like(d) for d in loop.new_destinations()]
    loop.run([], destinations, **part)
    return seeds


def splitmix(x: int) -> int:
    """Sebastiano Vigna's splitmix64, the part that mixes."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def expected_seed(base: int, replica: int, counter: int, index: int) -> int:
    state = splitmix(base)
    for value in (replica, counter, index):
        state = splitmix((state + (value + 1) * 0x9E3779B97F4A7C15) & WORD)
    return state & (WORD >> 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_seeds_follow_the_formula(workers: int) -> None:
    loop = seeded(3, 4, replicas=2, first_replica=6, workers=workers)
    loop.seed, loop.counters = 1 << 63 | 12345, [10, 20]

    seeds = drawn(loop).reshape(4, 2, 3)

    for iteration in range(4):
        for replica, start in enumerate((10, 20)):
            assert seeds[iteration, replica].tolist() == [
                expected_seed(1 << 63 | 12345, 6 + replica, start + iteration, i) for i in range(3)
            ]
    assert loop.counters == [14, 24]


def test_a_negative_seed_is_a_seed_too() -> None:
    loop = seeded(1, 1)

    loop.seed = -1

    assert loop.seed == WORD
    assert drawn(loop).item() == expected_seed(WORD, 0, 0, 0)


def test_restored_counters_repeat_the_seeds() -> None:
    loop = seeded(2, 4)
    loop.seed = 7
    drawn(loop)
    state = loop.counters
    expected = drawn(loop)

    loop.counters = state

    assert torch.equal(drawn(loop), expected)


def test_iterations_run_apart_draw_what_they_draw_together() -> None:
    loop, other = seeded(2, 4), seeded(2, 4)

    together = drawn(loop)
    apart = drawn(other, first=0, count=1) + drawn(other, first=1)

    assert torch.equal(apart, together)


@pytest.mark.parametrize("base", [0, 1, 42])
def test_a_hundred_thousand_seeds_neither_repeat_nor_lean(base: int) -> None:
    loop = seeded(25, 1000, replicas=4)
    loop.seed = base

    seeds = drawn(loop)

    assert len(seeds) == 100_000 == len(seeds.unique())
    assert seeds.min() >= 0
    ones = ((seeds[:, None] >> torch.arange(63)) & 1).double().sum(0)
    chi_square = ((ones - 50_000) ** 2 / 25_000).sum().item()
    assert 20 < chi_square < 130  # 63 degrees of freedom: 63 ± 6 · 11.2


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_neighbouring_seeds_share_half_of_their_bits(dim: int) -> None:
    seeds = drawn(seeded(20, 50, replicas=20)).reshape(50, 20, 20)
    steps = seeds.narrow(dim, 1, seeds.shape[dim] - 1) ^ seeds.narrow(dim, 0, seeds.shape[dim] - 1)

    flipped = ((steps[..., None] >> torch.arange(63)) & 1).double().mean((0, 1, 2))

    assert (flipped - 0.5).abs().max() < 5 * 0.5 / steps.numel() ** 0.5


def test_programs_without_seeds_leave_the_counters() -> None:
    loop = Loop(plan(program("FAIL_THIRD"), [], schedule=schedule(2)))

    loop.run([], [])

    assert loop.counters == [0]


def test_counters_of_another_number_of_replicas_are_refused() -> None:
    loop = seeded(1, 1, replicas=2)

    with pytest.raises(StateError, match="1 counters for 2 replicas"):
        loop.counters = [3]
