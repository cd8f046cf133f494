"""Programs as records, written down by hand or captured from small models."""

from __future__ import annotations

import torch
from torch import nn

from pantile.machine.records import ProgramRecord
from pantile.planning import record


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """`layers` equal blocks and a loss."""

    def __init__(self, layers: int = 4, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def stack_record(layers: int = 4, width: int = 32, batch: int = 8) -> ProgramRecord:
    return record(Stack(layers, width), (torch.zeros(batch, width),))
