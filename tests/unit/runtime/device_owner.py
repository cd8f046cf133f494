"""The smallest thing that owns weights: a device copy, a dirty flag, and counters."""

from __future__ import annotations

import torch
from torch import nn

from pantile.runtime.instrument import instrument, release, suspended


class DeviceOwner:
    """Holds the weights of `module` on a "device" and instruments the module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.pulls = 0
        self.dirty = False
        self.destroyed = 0
        instrument(module, self)
        with suspended(module):
            self.device = {name: t.detach().clone() for name, t in self.host_tensors().items()}

    def host_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_parameters()) | dict(self.module.named_buffers())

    def train(self, value: float) -> None:
        """Every weight on the device becomes `value`; the host does not know yet."""
        for tensor in self.device.values():
            tensor.fill_(value)
        self.dirty = True

    def copyWeightsToHost(self) -> None:
        with suspended(self.module), torch.no_grad():
            for name, tensor in self.host_tensors().items():
                tensor.copy_(self.device[name])
        self.pulls += 1
        self.dirty = False

    def copyWeightsToHostIfNeeded(self) -> bool:
        if not self.dirty:
            return False
        self.copyWeightsToHost()
        return True

    def destroy(self) -> None:
        self.copyWeightsToHostIfNeeded()
        self.destroyed += 1
        release(self.module)


class Net(nn.Module):
    """A direct parameter, a direct buffer, two children and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)
        self.fc = nn.Linear(3, 3)
        self.note = "plain"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x)) * self.scale + self.offset
