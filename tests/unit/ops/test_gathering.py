"""The op that PopTorch's package brings along gathers along the last dimension."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch


class Gathering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, data: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (found,) = poptorch.custom_op(
            [data * self.scale, index],
            "FastGatherLastDim",
            "poptorch.custom_ops",
            1,
            example_outputs=[torch.zeros(index.shape, dtype=data.dtype)],
        )
        return found, poptorch.identity_loss(found, reduction="sum")


def options() -> poptorch.Options:
    return poptorch.Options().strict(True)


def test_gathers_and_trains_what_it_gathered_from() -> None:
    data, index = torch.randn(2, 3, 5), torch.randint(5, (2, 3, 4))
    model = Gathering()
    wanted = torch.gather(data, -1, index)

    training = poptorch.trainingModel(
        model, options(), optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0)
    )
    found, _ = training(data, index)

    torch.testing.assert_close(found, 2 * wanted)
    torch.testing.assert_close(training.scale.detach(), 2 - wanted.sum())


@pytest.mark.parametrize("shape", [(2, 1, 4), (3, 4)])
def test_refuses_indices_that_lack_a_dimension_of_the_data(shape: tuple[int, ...]) -> None:
    with pytest.raises(poptorch.Error, match="FastGatherLastDim: index has shape"):
        poptorch.inferenceModel(Gathering(), options())(
            torch.randn(2, 3, 5), torch.zeros(shape, dtype=torch.int64)
        )
