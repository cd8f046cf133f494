"""float64 and bfloat16 asked for inside forward are float32 in strict mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch

WIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a method": lambda x: x.double(),
    "another method": lambda x: x.bfloat16(),
    "a conversion": lambda x: x.to(torch.float64),
    "a type": lambda x: x.type(torch.bfloat16),
    "a factory": lambda x: x + torch.zeros(1, dtype=torch.float64),
}


class Seen(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call
        self.types: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.call(x)
        self.types.append(result.dtype)
        return result


@pytest.mark.parametrize("name", WIDE)
def test_the_wide_type_is_not_there(name: str) -> None:
    model = Seen(WIDE[name])
    x = torch.tensor([1.001])

    result = poptorch.inferenceModel(model, poptorch.Options().strict().engine("reference"))(x)

    assert model.types == [torch.float32]
    assert torch.equal(result, x)


def test_without_strict_mode_it_is() -> None:
    model = Seen(WIDE["a method"])

    poptorch.inferenceModel(model, poptorch.Options().strict(False).engine("reference"))(
        torch.ones(1)
    )

    assert model.types == [torch.float64]


def test_dynamic_update_names_the_types_of_the_device() -> None:
    model = Seen(
        lambda x: poptorch.dynamic_update(
            x, torch.zeros(1, dtype=torch.int64), 0, torch.tensor([0]), 1
        )
    )

    with pytest.raises(poptorch.Error, match=r"same dtype\. \(torch.float32 vs torch.int32\)"):
        poptorch.inferenceModel(model, poptorch.Options().strict().engine("reference"))(
            torch.ones(2)
        )
