"""In-place ops on tensors that are not contiguous give the bits of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch


class _Scaled(nn.Module):
    """Trains one number that multiplies what `function` makes of the input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.function(x * self.weight)
        return result.pow(2).mean(), result


def _both(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """The results of eager PyTorch and of Pantile, from the same random state."""
    model = _Scaled(function)
    twin = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(5)
    got = executor(x)[1]
    torch.manual_seed(5)
    return [twin(x)[1].detach(), got]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x.permute(2, 0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:, :2].transpose(1, 2),
    ],
    ids=["transposed", "permuted", "every second", "transposed part"],
)
def test_dropout_of_a_view_drops_the_same_elements(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    expected, got = _both(lambda x: F.dropout(view(x), 0.5), torch.randn(3, 4, 5))

    assert torch.equal(got, expected)


def test_bernoulli_with_its_default_probability_draws_in_memory_order() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.t() * torch.empty_like(x.t()).bernoulli_()

    expected, got = _both(function, torch.randn(6, 7))

    assert torch.equal(got, expected)


def test_a_draw_into_a_tensor_that_is_read_again_is_seen() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(x).t()
        mask.bernoulli_(0.5)
        return x.t() * mask + mask

    expected, got = _both(function, torch.randn(6, 7))

    assert torch.equal(got, expected)


def test_rows_with_gaps_keep_their_scalar_tails() -> None:
    # 24 columns: a vector loop of 16 and a scalar tail of 8 in every row.
    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = x.unsafe_chunk(2, 1)
        return left.add_(right).tanh_()

    expected, got = _both(function, torch.randn(4, 48))

    assert torch.equal(got, expected)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_gru_trains_to_the_bits_of_eager(steps: int) -> None:
    model = nn.GRU(16, 24, num_layers=2, bidirectional=True)
    twin = copy.deepcopy(model)
    wrapped = nn.Sequential(model, _FirstOutput())
    executor = poptorch.trainingModel(wrapped, optimizer=torch.optim.SGD(wrapped.parameters(), 1.0))
    x = torch.randn(steps, 3, 16)

    executor(x)

    twin(x)[0].pow(2).mean().backward()
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter, expected - expected.grad)


class _FirstOutput(nn.Module):
    def forward(self, outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return outputs[0].pow(2).mean()
