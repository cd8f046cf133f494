"""A model of one weight, and what can happen to the weight between two calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def in_lane(executor: Any) -> bool:
    return type(executor._hot.call).__name__ == "Lane"


def edit_in_place(module: Scaled) -> None:
    with torch.no_grad():
        module.scale.mul_(3)


def edit_through_data(module: Scaled) -> None:
    module.scale.data.add_(1)


def edit_through_numpy(module: Scaled) -> None:
    module.scale.detach().numpy()[0] = 11


def move(module: Scaled) -> None:
    module.scale.data = module.scale.data.clone() * 2


def replace(module: Scaled) -> None:
    module.scale = nn.Parameter(torch.full((4,), 7.0))


def load(module: Scaled) -> None:
    module.load_state_dict({"scale": torch.arange(4.0)})


def freeze(module: Scaled) -> None:
    module.scale.requires_grad_(False)


def share_lazily(module: Scaled) -> None:
    """A copy that is made when either of the two is written to."""
    copy = torch._lazy_clone(module.scale)  # type: ignore[attr-defined]
    module.scale.data.mul_(5)
    assert torch.equal(copy * 5, module.scale)


EDITS = (
    edit_in_place,
    edit_through_data,
    edit_through_numpy,
    move,
    replace,
    load,
    freeze,
    share_lazily,
)
