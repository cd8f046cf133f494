"""Stand-ins take from the generator what the draws themselves take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from pantile.runtime.pipeline.draws import Draws


class Drawing(nn.Module):
    def __init__(self, draw) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return self.draw(x)


DRAWS = {
    "dropout": lambda x: nn.functional.dropout(x, 0.3),
    "bernoulli of values": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.2),
    "rand": lambda x: torch.rand(5, 3) + x.sum(),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(7) + x.sum(),
    "few randn": lambda x: torch.randn(3) + x.sum(),
    "randn_like of a transposed": lambda x: torch.randn_like(x.t()),
    "randint": lambda x: torch.randint(3, 17, (4, 9)) + x.sum(),
    "randint_like": lambda x: torch.randint_like(x, 3),
    "randperm": lambda x: torch.randperm(40) + x.sum(),
    "normal of values": lambda x: torch.normal(x, x.abs()),
    "normal_": lambda x: x.clone().normal_(2.0, 3.0),
    "uniform_": lambda x: x.clone().uniform_(-1, 2),
    "exponential_": lambda x: x.clone().exponential_(0.7),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_stand_in_leaves_the_generator_where_the_draw_would(name):
    executor = poptorch.inferenceModel(Drawing(DRAWS[name]))
    x = torch.randn(6, 8) * 3
    executor(x)
    draws = Draws(executor._executable.program)

    torch.manual_seed(5)
    executor(x)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    states = draws.note_states()

    assert len(states) == 1
    assert torch.equal(torch.get_rng_state(), after)
    assert draws.unpredictable == ""


def test_draws_that_depend_on_values_are_named():
    executor = poptorch.inferenceModel(Drawing(lambda x: torch.poisson(x.abs())))
    executor(torch.rand(3))

    assert "poisson" in Draws(executor._executable.program).unpredictable
