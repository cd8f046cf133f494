"""What a peer is: something that prepares an engine for a workload; and what an engine is.

peer.available()                  None, or why it cannot run here
engine = peer.training(workload)  model built, compiled as far as that is possible
result = engine.run(10)           ten calls; the result of the last one
engine.wait(result)               until it is computed (JAX returns before that)
engine.read(result)               as numbers: the losses, or the output of the model
"""

from __future__ import annotations

import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.workloads import Workload

Purpose = Literal["training", "inference"]


@dataclass(frozen=True)
class Settings:
    """What the command line says about peers."""

    engine: str = "native"
    """Pantile's engine."""
    paddle_python: str | None = None
    """An interpreter that has Paddle; it pins versions, so it lives apart."""


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Engine:
    """A prepared engine. One call runs `steps` steps of the workload."""

    run: Callable[[int], Any]
    read: Callable[[Any], np.ndarray]
    steps: int = 1
    wait: Callable[[Any], None] = _nothing
    close: Callable[[], None] = _nothing
    cpu_clock: Callable[[], float] = time.process_time
    """CPU seconds of the process the engine runs in, all its threads together."""
    compile_seconds: Callable[[], float] | None = None
    """What of the preparation was to write, compile and check code, if the engine tells."""
    notes: Sequence[str] = ()
    """What the engine has warned about so far."""


class Peer(ABC):
    """One way to run a workload."""

    name: str
    family: str
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    compiles = True
    """Whether preparing it takes long enough to be worth a cache."""

    def available(self) -> str | None:
        """Why this peer cannot run here; None if it can."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else None

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Whether the comparison makes sense for this workload."""
        return True

    @abstractmethod
    def training(self, workload: Workload) -> Engine:
        """An engine whose every step trains on the batch of the workload."""

    def inference(self, workload: Workload) -> Engine:
        """An engine whose every step runs the model on the inputs of the workload."""
        raise NotImplementedError(f"{self.name} has no inference here")


def repeated(step: Callable[[], Any]) -> Callable[[int], Any]:
    """`run` of an engine that is a Python function."""

    def run(calls: int) -> Any:
        result = None
        for _ in range(calls):
            result = step()
        return result

    return run
