"""This project: one step a call, and eight steps a call through `deviceIterations(8)`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import poptorch
from benchmarks.peers.eager import numbers
from benchmarks.peers.peer import Engine, Peer, Settings, repeated
from benchmarks.workloads import Workload

_LISTENED = 4
"""Runs whose warnings are kept: an engine may be given up when it is first used."""


@dataclass(frozen=True)
class Shape:
    """How many micro-batches one call holds."""

    iterations: int = 1
    accumulation: int = 1
    replicas: int = 1

    @property
    def micro_batches(self) -> int:
        """Of one call."""
        return self.iterations * self.accumulation * self.replicas


class _Kept(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def _warnings_into(messages: list[str]) -> Iterator[None]:
    """Collect what Pantile warns about, such as a fall back to the reference engine."""
    kept = _Kept(messages)
    logger = logging.getLogger("poptorch::python")
    logger.addHandler(kept)
    try:
        yield
    finally:
        logger.removeHandler(kept)


def _repeat(part: torch.Tensor, times: int) -> torch.Tensor:
    return part if times == 1 else torch.cat([part] * times)


def training_engine(workload: Workload, engine: str, shape: Shape) -> Engine:
    """A compiled executor; each call trains on the workload's batch, once per micro-batch."""
    model = workload.with_loss()
    optimizer = workload.optimizer(model.parameters())
    options = poptorch.Options().engine(engine).showCompilationProgressBar(False)
    options.deviceIterations(shape.iterations).replicationFactor(shape.replicas)
    options.Training.gradientAccumulation(shape.accumulation)
    if shape.iterations > 1:
        options.outputMode(poptorch.OutputMode.All)  # a loss for every step, as from the others
    batch = tuple(_repeat(part, shape.micro_batches) for part in workload.batch())
    executor = poptorch.trainingModel(model, options, optimizer)
    return _engine(executor, batch, shape.iterations)


def inference_engine(workload: Workload, engine: str, iterations: int) -> Engine:
    """A compiled executor for inference."""
    options = poptorch.Options().engine(engine).showCompilationProgressBar(False)
    options.deviceIterations(iterations)
    executor = poptorch.inferenceModel(workload.model().eval(), options)
    return _engine(executor, (_repeat(workload.batch()[0], iterations),), iterations)


def _engine(executor: Any, batch: tuple[torch.Tensor, ...], steps: int) -> Engine:
    messages: list[str] = []
    with _warnings_into(messages):
        executor.compile(*batch)
    loop = repeated(lambda: executor(*batch))
    listened = iter(range(_LISTENED))

    def run(calls: int) -> Any:
        if next(listened, None) is None:
            return loop(calls)
        with _warnings_into(messages):
            return loop(calls)

    def compile_seconds() -> float:
        return sum(entry.header["seconds"] for entry in executor._executable_entries())

    return Engine(
        run,
        numbers,
        steps=steps,
        close=executor.destroy,
        compile_seconds=compile_seconds,
        notes=messages,
    )


class Pantile(Peer):
    """`trainingModel` and `inferenceModel` with a number of device iterations."""

    family, needs = "pantile", ("poptorch",)

    def __init__(self, name: str, engine: str, iterations: int) -> None:
        self.name = name
        self._engine = engine
        self._iterations = iterations

    def training(self, workload: Workload) -> Engine:
        """A compiled training executor."""
        return training_engine(workload, self._engine, Shape(self._iterations))

    def inference(self, workload: Workload) -> Engine:
        """A compiled inference executor."""
        return inference_engine(workload, self._engine, self._iterations)


def peers(settings: Settings) -> list[Peer]:
    """One step a call, and eight."""
    return [
        Pantile("pantile", settings.engine, 1),
        Pantile("pantile-d8", settings.engine, 8),
    ]
