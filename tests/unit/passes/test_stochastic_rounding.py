"""Rounding at random: one of the two neighbours, right on average."""

from __future__ import annotations

import pytest
import torch
from tests.unit.program.builder import Builder, aten, run, traced

from pantile.passes.stochastic_rounding import stochastic_rounding
from pantile.program.verify import verify

HALF = torch.float16
MANY = 20_000


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Float32 numbers cast to float16 by a program that rounds at random."""
    program = stochastic_rounding(traced(lambda x: x.to(HALF), values))
    verify(program)
    return run(program, values)[0]


@pytest.mark.parametrize(
    "value", [1.0003, -1.0003, 0.1, 3000.7, 65503.0, 2.0**-14 * 1.0004, 3.3 * 2.0**-24, 2.0**-26]
)
def test_results_are_the_two_neighbours_in_proportion_to_their_distance(value):
    nearest = torch.tensor(value, dtype=torch.float64).to(HALF)
    step = 1 if float(nearest) <= value else -1
    towards = torch.tensor(float("inf") * step, dtype=HALF)
    neighbours = {float(nearest), float(torch.nextafter(nearest, towards))}
    exact = float(torch.tensor(value))  # as float32 holds it

    out = rounded(torch.full((MANY,), value))

    assert set(out.tolist()) <= neighbours
    low, high = sorted(neighbours)
    share = (exact - low) / (high - low)
    deviation = (share * (1 - share) / MANY) ** 0.5
    assert float((out == high).double().mean()) == pytest.approx(share, abs=5 * deviation + 1e-9)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 65504.0, 2.0**-24, float("inf")])
def test_what_float16_holds_stays_as_it_is(value):
    assert set(rounded(torch.full((MANY,), value)).tolist()) == {value}


def test_nan_and_overflow_stay():
    out = rounded(torch.tensor([float("nan"), 1e6, -1e6]))

    assert out[0].isnan()
    assert out[1:].tolist() == [float("inf"), -float("inf")]


def test_elementwise_ops_and_products_are_rounded_once_from_float32():
    a, b = torch.full((MANY,), 1.0, dtype=HALF), torch.full((MANY,), 2.0**-13, dtype=HALF)
    program = stochastic_rounding(traced(lambda x, y: x + y, a, b))

    out = run(program, a, b)[0].float()

    # To nearest, the sum would be 1; one in eight is 1 + 2**-10.
    assert float((out > 1).float().mean()) == pytest.approx(0.125, abs=0.02)


def test_exact_ops_and_float32_are_left_alone():
    build = Builder()
    x = build.input("x", (4,), dtype=HALF)
    wide = build.input("wide", (4,))
    build.returns("out", build.call(aten.relu.default, x))
    build.returns("sum", build.call(aten.add.Tensor, wide, wide))

    after = stochastic_rounding(build.finish())

    assert [n.name for n in after.graph.nodes] == ["x", "wide", "relu", "add", "output"]
