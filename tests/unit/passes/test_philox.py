"""Philox: the published vectors, the definition of the paper, and numbers without patterns."""

from __future__ import annotations

import math
import random

import pytest
import torch

from pantile.passes.philox import PHILOX, ROUNDS, philox

WORD = (1 << 32) - 1
COUNT = 1 << 20
DEVIATIONS = 4.5

# Random123's kat_vectors for philox2x32 with ten rounds: counter, key, result.
PUBLISHED = [
    ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
    ((WORD, WORD), WORD, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
]

PUBLISHED_OF_SEVEN = [
    ((0, 0), 0, (0x257A3673, 0xCD26BE2A)),
    ((WORD, WORD), WORD, (0xAB302C4D, 0x3DC9D239)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xBEDBBE6B, 0xE4C770B3)),
]


def defined(counter: tuple[int, int], key: int, rounds: int) -> tuple[int, int]:
    """Salmon et al. (2011), section 3.3, in whole numbers of any size."""
    left, right = counter
    for _ in range(rounds):
        product = 0xD256D193 * left
        left, right = (product >> 32) ^ key ^ right, product & WORD
        key = (key + 0x9E3779B9) & WORD
    return left, right


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def ours(counter: tuple[int, int], key: int, rounds: int) -> tuple[int, int]:
    index = torch.tensor([signed(counter[0], 32)], dtype=torch.int32)
    seed = torch.tensor(signed(counter[1] << 32 | key, 64))
    bits = int(philox(index, seed, rounds).item())
    return bits & WORD, bits >> 32 & WORD


@pytest.mark.parametrize(("counter", "key", "result"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_ten_rounds_give_the_published_vectors(
    counter: tuple[int, int], key: int, result: tuple[int, int]
) -> None:
    assert defined(counter, key, 10) == result
    assert ours(counter, key, 10) == result


@pytest.mark.parametrize(
    ("counter", "key", "result"), PUBLISHED_OF_SEVEN, ids=["zeros", "ones", "pi"]
)
def test_what_is_drawn_are_the_published_vectors_of_seven_rounds(
    counter: tuple[int, int], key: int, result: tuple[int, int]
) -> None:
    assert ours(counter, key, ROUNDS) == result


def test_rounds_are_those_of_the_definition() -> None:
    rng = random.Random(0)
    edges = (0, 1, WORD >> 1, (WORD >> 1) + 1, WORD)

    def word() -> int:
        return rng.choice((rng.choice(edges), rng.randrange(WORD)))

    for _ in range(300):
        counter, key, rounds = (word(), word()), word(), rng.choice((1, 2, ROUNDS))
        assert ours(counter, key, rounds) == defined(counter, key, rounds)


def test_rounds_are_enough_for_all_tests_of_big_crush() -> None:
    """Of the paper: Philox of 32-bit words passes with seven or more."""
    assert ROUNDS >= 7


def test_the_operator_draws_what_the_function_does_in_the_order_of_memory() -> None:
    index, seed = torch.arange(60, dtype=torch.int32).view(5, 12).t(), torch.tensor(1 << 40 | 7)

    drawn = PHILOX(index, seed)

    assert torch.equal(drawn, philox(index, seed))
    assert (drawn.dtype, drawn.stride()) == (torch.int64, index.stride())


def bits(seed: int, count: int = COUNT) -> torch.Tensor:
    return philox(torch.arange(count, dtype=torch.int32), torch.tensor(seed))


def uniform(seed: int, count: int = COUNT) -> torch.Tensor:
    return (bits(seed, count) & WORD).double() / (WORD + 1)


def check_cells(cells: torch.Tensor, count: int) -> None:
    """Chi-square: are all cells hit alike?"""
    found = torch.bincount(cells, minlength=count).double()
    expected = cells.numel() / count
    chi = float(((found - expected) ** 2 / expected).sum())
    assert abs(chi - (count - 1)) < DEVIATIONS * math.sqrt(2 * (count - 1))


SEEDS = [0, 1, 2, 1 << 32, (1 << 62) - 1, 0x3AD38F0912BC77A1]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_takes_all_values_alike(seed: int) -> None:
    drawn = bits(seed)

    for shift in range(0, 64, 8):
        check_cells(drawn >> shift & 0xFF, 256)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_bit_is_set_in_half_of_the_numbers(seed: int) -> None:
    drawn = bits(seed)

    for place in range(64):
        share = (drawn >> place & 1).double().mean().item()
        assert abs(share - 0.5) < DEVIATIONS * 0.5 / math.sqrt(COUNT), place


@pytest.mark.parametrize("seed", SEEDS)
def test_the_distribution_function_is_a_straight_line(seed: int) -> None:
    """Kolmogorov and Smirnov: a distance of 1.95 is passed by one sample in a thousand."""
    ordered = uniform(seed).sort().values
    steps = torch.arange(COUNT + 1).double() / COUNT

    distance = max((steps[1:] - ordered).max().item(), (ordered - steps[:-1]).max().item())

    assert distance * math.sqrt(COUNT) < 1.95


@pytest.mark.parametrize("apart", [1, 2, 16, 255, 256, 4096])
def test_neighbours_have_nothing_to_do_with_each_other(apart: int) -> None:
    drawn = uniform(5)
    one, other = drawn[:-apart], drawn[apart:]

    correlation = torch.corrcoef(torch.stack([one, other]))[0, 1].item()
    assert abs(correlation) < DEVIATIONS / math.sqrt(COUNT)
    check_cells((one * 32).long() * 32 + (other * 32).long(), 1024)


@pytest.mark.parametrize("step", [1, 2, 1 << 16, 1 << 31, 1 << 32, 1 << 33, 1 << 61])
def test_seeds_that_differ_in_little_have_nothing_to_do_with_each_other(step: int) -> None:
    one, other = uniform(6), uniform(6 + step)

    correlation = torch.corrcoef(torch.stack([one, other]))[0, 1].item()
    assert abs(correlation) < DEVIATIONS / math.sqrt(COUNT)
    check_cells((one * 32).long() * 32 + (other * 32).long(), 1024)


def test_the_two_words_have_nothing_to_do_with_each_other() -> None:
    drawn = bits(7)

    check_cells((drawn >> 27 & 31) * 32 + (drawn >> 59 & 31), 1024)
    check_cells((drawn & 31) * 32 + (drawn >> 32 & 31), 1024)


def test_an_element_is_uniform_over_seeds_in_sequence() -> None:
    index = torch.tensor([0, 1, 77], dtype=torch.int32)
    drawn = torch.stack([philox(index, torch.tensor(seed)) for seed in range(4000)])

    for element in range(3):
        check_cells(drawn[:, element] >> 28 & 15, 16)


def test_no_two_elements_have_the_same_bits() -> None:
    assert bits(8).unique().numel() == COUNT


@pytest.mark.parametrize("where", ["index", "lower half of the seed", "upper half of the seed"])
def test_one_bit_of_the_argument_flips_half_of_the_result(where: str) -> None:
    index, seed = torch.arange(20_000, dtype=torch.int32), torch.tensor(12345 << 32 | 678)
    before = philox(index, seed)

    for place in range(31):
        flip = 1 << place
        if where == "index":
            after = philox(index ^ flip, seed)
        else:
            after = philox(index, seed ^ (flip if "lower" in where else flip << 32))
        changed = before ^ after
        flipped = sum((changed >> k & 1).double().mean().item() for k in range(64)) / 64
        assert abs(flipped - 0.5) < DEVIATIONS * 0.5 / math.sqrt(64 * index.numel()), place
