"""Numbers whose conclusions decide whether a recording fits another call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pantile.capture.tracked import SLOTS, Facts, evaluated, is_tracked


def begun(**values: Any) -> tuple[Facts, Any]:
    facts = Facts()
    facts.begin(values, torch.full((1, SLOTS), 7.0, dtype=torch.float64))
    return facts, facts.number("i")


def test_says_it_is_an_int_and_is_none_for_c_code() -> None:
    _, number = begun(i=3)

    assert isinstance(number, int)
    assert is_tracked(number)
    assert not is_tracked(3)


@pytest.mark.parametrize(
    ("conclude", "fits", "does_not"),
    [
        (lambda i: i % 2 == 0, [0, 2, 8], [1, 3]),
        (lambda i: i > 3, [4, 9], [0, 3]),
        (lambda i: bool(i - 4), [5, 0], [4]),
        (lambda i: [10, 20, 30, 40, 50, 60, 70][i], [6], [5]),
        (lambda i: f"{i}", [6], [7]),
        (lambda i: {6: "a"}[i], [6], [2]),
        (lambda i: range(i), [6], [7]),
        (lambda i: 12 // i == 2, [5, 6], [4, 7]),
        (lambda i: -i < -2, [3, 6], [2]),
        (lambda i: round(i / 4) == 2, [6, 8], [4]),
        (lambda i: i in (1, 6), [6], [1, 2]),
        (lambda i: None, [0, 99], []),
    ],
)
def test_a_recording_fits_where_every_conclusion_is_drawn_again(
    conclude: Any, fits: list[int], does_not: list[int]
) -> None:
    facts, number = begun(i=6)

    conclude(number)

    assert all(facts.hold({"i": value}) for value in fits)
    assert not any(facts.hold({"i": value}) for value in does_not)


def test_arithmetic_draws_no_conclusion_and_is_done_again() -> None:
    facts, number = begun(i=6)

    made = (2 * number + 1) / 3

    assert facts.hold({"i": 100})
    assert evaluated(made, {"i": 100}) == 67.0
    assert evaluated(5, {}) == 5


def test_a_number_that_meets_a_tensor_is_an_input() -> None:
    facts, number = begun(i=7)

    for made in (torch.ones(2) * number, number * torch.ones(2)):
        assert made.tolist() == [7.0, 7.0]
    assert facts.hold({"i": 1})
    assert facts.inputs[0]({"i": 9}) == 9
    row = facts.fill(2, {"i": 9})
    assert (row.shape, row[1, :2].tolist()) == ((2, SLOTS), [9.0, 9.0])


def test_a_number_that_is_a_size_is_a_conclusion() -> None:
    facts, number = begun(i=2)

    assert torch.zeros(4).reshape(number, 2).shape == (2, 2)
    assert not facts.hold({"i": 4})


def test_no_number_is_baked_in_when_the_slots_are_used_up() -> None:
    facts, number = begun(i=7)

    for _ in range(SLOTS + 1):
        torch.ones(1) * number

    assert len(facts.inputs) == SLOTS
    assert not facts.hold({"i": 8})
