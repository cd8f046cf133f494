"""Sums of what a comparison lets through, beside convolutions: a compiler got them wrong once.

convolution → norm → relu → convolution        the gradient of the norm's bias is such a sum
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.programs import Case, check, taken

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def block(images: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    """What a block of a network gives, and the gradients by all its inputs."""

    def forward(
        x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        inner = F.conv2d(x, w, padding=1)
        inner = F.relu(F.batch_norm(inner, None, None, scale, bias, training=True))
        return F.conv2d(inner, v, padding=1)

    with torch.enable_grad():
        value, pull = torch.func.vjp(forward, images, *weights)
    return [value, *pull(torch.cos(value))]


def case(channels: int, side: int) -> Case:
    """A block with so many channels inside."""
    weights: Weights = (
        torch.randn(channels, 3, 3, 3) / 5,
        torch.rand(channels) + 0.5,
        torch.randn(channels),
        torch.randn(channels, channels, 3, 3) / (3 * channels**0.5),
    )
    return Case(f"{channels} channels, {side}²", block, (torch.randn(2, 3, side, side), *weights))


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
def test_every_channel_counts_only_what_the_relu_lets_through(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_CPU", target)
    torch.manual_seed(0)
    sizes = {1: 16, 3: 9, 5: 7, 8: 16, 16: 32, 24: 8, 32: 16, 64: 6}
    every = [case(channels, side) for channels, side in sizes.items()]

    assert taken(every) == every
    check(every)
