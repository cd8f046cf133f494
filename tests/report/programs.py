"""The model of the browser tests: a pipeline over four IPUs, with a module of an evil name."""

from __future__ import annotations

import torch
from torch import nn

import poptorch

EVIL = "<script>alert(1)</script>"


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Pipeline(nn.Module):
    """`layers` equal layers on four IPUs, a head with the name, and a loss."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.add_module(EVIL, nn.Linear(width, width))
        for index, layer in enumerate(self.layers):
            if index * 4 % layers == 0:
                poptorch.BeginBlock(layer, ipu_id=index * 4 // layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return poptorch.identity_loss(getattr(self, EVIL)(x).pow(2), "mean")
