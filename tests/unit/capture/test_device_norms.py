"""Norms whose numbers on the device are not those of eager PyTorch; strict mode only."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import options, strict
from torch import nn

import poptorch


def strided(given: poptorch.Options) -> poptorch.Options:
    given._Popart.set("groupNormStridedChannelGrouping", True)
    return given


def by_hand(norm: nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    """Channels g, g + G, g + 2G, … are normalised together."""
    out = torch.empty_like(x)
    for group in range(norm.num_groups):
        mine = x[:, group :: norm.num_groups]
        axes = tuple(range(1, x.ndim))
        variance, mean = torch.var_mean(mine, axes, correction=0, keepdim=True)
        out[:, group :: norm.num_groups] = (mine - mean) / (variance + norm.eps).sqrt()
    if norm.affine:
        along = (-1, *(1 for _ in x.shape[2:]))
        out = out * norm.weight.view(along) + norm.bias.view(along)
    return out.detach()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3, 12), (2, 6, 5), (2, 6, 3, 2)])
def test_the_setting_groups_channels_that_are_far_apart(
    shape: tuple[int, ...], affine: bool
) -> None:
    norm, x = nn.GroupNorm(3, shape[1], affine=affine), torch.randn(shape)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)

    out = poptorch.inferenceModel(norm, strided(strict()))(x)

    torch.testing.assert_close(out, by_hand(norm, x))
    assert not torch.allclose(out, norm(x), atol=0.1)


def test_a_group_norm_with_the_setting_trains() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.norm(x).exp(), reduction="sum")

    model, x = Trained(), torch.randn(3, 4, 5)
    wanted = by_hand(model.norm, x).exp().sum((0, 2))

    poptorch.trainingModel(model, strided(strict()), torch.optim.SGD(model.parameters(), lr=0.1))(x)

    torch.testing.assert_close(model.norm.bias.detach(), -0.1 * wanted)


def test_without_strict_mode_the_setting_changes_nothing() -> None:
    norm, x = nn.GroupNorm(2, 4), torch.randn(3, 4, 5)

    out = poptorch.inferenceModel(norm, strided(options()))(x)

    torch.testing.assert_close(out, norm(x).detach())
