"""int64 numbers have the values of int32 ones in strict mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch

BIG = torch.tensor([2**31 + 5, 50_000, -3])


class Calls(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x)


FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a conversion": lambda x: x.float(),
    "a comparison": lambda x: x > 0,
    "a division": lambda x: x // 2,
    "a maximum": lambda x: torch.maximum(x, x * 0),
    "a product that overflows": lambda x: (x * x) // 3,
    "a power that overflows": lambda x: (x**2).clamp(min=0),
    "a sum with a float": lambda x: x + 0.5,
}


def run(call: Callable[..., Any], x: torch.Tensor, *, strict: bool = True) -> Any:
    options = poptorch.Options().strict(strict).engine("reference")
    return poptorch.inferenceModel(Calls(call), options)(x)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_result_is_the_one_of_32_bits(name: str) -> None:
    formula = FORMULAS[name]

    assert torch.equal(run(formula, BIG), formula(BIG.to(torch.int32)))


def test_without_strict_mode_all_64_bits_count() -> None:
    formula = FORMULAS["a product that overflows"]

    assert torch.equal(run(formula, BIG, strict=False), formula(BIG))


def test_places_and_classes_are_read_as_they_are() -> None:
    table, places = nn.Embedding(5, 3), torch.tensor([4, 0, 2])
    options = poptorch.Options().strict().engine("reference")

    looked_up = poptorch.inferenceModel(table, options)(places)
    marked = run(lambda x: nn.functional.one_hot(x, 5), places)

    assert torch.equal(looked_up, table(places).detach())
    assert torch.equal(marked, nn.functional.one_hot(places, 5).int())
