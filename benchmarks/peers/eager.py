"""PyTorch without a compiler: the loop of the tutorials."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.peers.peer import Engine, Peer, Purpose, Settings, repeated
from benchmarks.workloads import Workload


def numbers(result: torch.Tensor) -> np.ndarray:
    """A loss, losses or outputs as a flat array."""
    return np.atleast_1d(result.detach().double().numpy()).ravel()


class Eager(Peer):
    """Eager PyTorch with one of its optimizer implementations and memory formats."""

    family = "eager"
    compiles = False

    def __init__(self, name: str, *, channels_last: bool = False, **flags: Any) -> None:
        self.name = name
        self._channels_last = channels_last
        self._flags = flags

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Memory formats matter to convolutions only, the optimizer to training only."""
        if self._channels_last:
            return workload.convolutions
        return purpose == "training" or not self._flags

    def training(self, workload: Workload) -> Engine:
        """zero_grad, forward, backward, step."""
        model, (x, labels) = workload.with_loss(), workload.batch()
        if self._channels_last:
            model = model.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        optimizer = workload.optimizer(model.parameters(), **self._flags)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x, labels)
            loss.backward()
            optimizer.step()
            return loss

        return Engine(repeated(step), numbers)

    def inference(self, workload: Workload) -> Engine:
        """Forward in inference mode."""
        model, x = workload.model().eval(), workload.batch()[0]
        if self._channels_last:
            model = model.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)

        def run(calls: int) -> Any:
            with torch.inference_mode():
                return repeated(lambda: model(x))(calls)

        return Engine(run, numbers)


def peers(settings: Settings) -> list[Peer]:
    """Default, fused, and fused with channels-last."""
    return [
        Eager("eager"),
        Eager("eager-fused", fused=True),
        Eager("eager-channels-last", fused=True, channels_last=True),
    ]
