"""A buffer that is written to after a gradient has come to need it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch


class Scaled(nn.Module):
    """What eager computes if the scale is copied before it changes."""

    def __init__(self, *, in_eager: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)
        self.register_buffer("scale", torch.tensor([2.0]))
        self.in_eager = in_eager

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) * (self.scale.clone() if self.in_eager else self.scale)
        self.scale += 1
        return poptorch.identity_loss(x.square(), reduction="sum")


def strict_training(model: nn.Module) -> poptorch.PoplarExecutor:
    options = poptorch.Options().strict().engine("reference").showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, options, optimizer)


def test_a_strict_gradient_uses_the_value_from_before_the_write():
    torch.manual_seed(0)
    model, copy = Scaled(), Scaled(in_eager=True)
    copy.load_state_dict(model.state_dict())
    step, optimizer = strict_training(model), torch.optim.SGD(copy.parameters(), lr=0.01)
    x = torch.randn(2)

    for _ in range(3):
        loss = step(x)
        optimizer.zero_grad()
        expected = copy(x)
        expected.backward()
        optimizer.step()

    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(model.layer.weight, copy.layer.weight)
    assert model.scale.item() == 5


def test_any_other_tensor_changed_in_place_stays_an_error():
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x).exp()
            y += 1
            return poptorch.identity_loss(y, reduction="sum")

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        strict_training(Overwrites())(torch.randn(2))
