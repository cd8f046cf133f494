"""One step: D device iterations of G micro-batches on R replicas, then an update each.

for d in D:                          device iterations
    for a in G:                      accumulation steps
        for r in R:                  replicas, each with its rows, buffers, random stream
            gradients(...)           adds to the replica's accumulators
    reduce over replicas, divide, update
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from pantile.runtime.compiled import Compiled
from pantile.runtime.counters import StepTimes
from pantile.runtime.inputs import InputReader
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, OutputCollector
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Reduction
from pantile.runtime.weights import Weights, memory_of

if TYPE_CHECKING:
    from pantile.runtime.native.engine import NativeEngine
    from pantile.runtime.native.runner import Runner


@dataclass(frozen=True, eq=False)
class Machine:
    """What the steps of one executor have in common."""

    batching: Batching
    reader: InputReader
    random: RandomStreams
    times: StepTimes


class Step:
    """One call of an executor: a program, its arguments, and where the results go."""

    def __init__(
        self,
        machine: Machine,
        weights: Weights,
        compiled: Compiled,
        tensors: Sequence[torch.Tensor],
        collector: OutputCollector,
    ) -> None:
        self._machine = machine
        self._weights = weights
        self._compiled = compiled
        self._tensors = tensors
        self._collector = collector
        self._shared = tensors
        if compiled.written_arguments:
            self._shared = machine.reader.originals(tensors)
        self._destinations: list[torch.Tensor] | None = None
        #: What ran all of the step, if it ran natively from beginning to end.
        self.native_whole: Runner | None = None
        machine.times.begin(len(tensors), compiled.user_outputs)

    @cached_property
    def _memory(self) -> set[int]:
        """The memory of the call's arguments."""
        return {memory_of(tensor) for tensor in (*self._tensors, *self._shared)}

    def infer(self, engine: NativeEngine | None = None) -> None:
        """All micro-batches, forward only."""
        iteration, end = 0, self._machine.batching.iterations
        while iteration < end:
            if engine is not None:
                runner = engine.ready(self._compiled, self._weights, self._tensors)
                if runner is not None:
                    self._run_natively(runner, iteration, end - iteration)
                    return
                engine.note_run(self._compiled)
            for replica in range(self._machine.batching.replicas):
                self._micro_batch(iteration, 0, replica, ())
            iteration += 1

    def train(
        self, update: Update, reduction: Reduction, engine: NativeEngine | None = None
    ) -> None:
        """All micro-batches and updates."""
        iteration, end = 0, self._machine.batching.iterations
        while iteration < end:
            if engine is not None:
                runner = engine.ready(
                    self._compiled, self._weights, self._tensors, update, reduction
                )
                if runner is not None:
                    count = 1 if runner.one_by_one else end - iteration
                    self._run_natively(runner, iteration, count)
                    update.note_step()
                    iteration += count
                    continue
                engine.note_run(self._compiled)
            self._train_once(iteration, update, reduction)
            iteration += 1

    def _train_once(self, iteration: int, update: Update, reduction: Reduction) -> None:
        """One device iteration on the reference engine."""
        scaled = self._compiled.variant.scaled
        extra = (torch.tensor(update.loss_scaling),) if scaled else ()
        gradients = self._accumulate(iteration, reduction, extra)
        if gradients:
            update.apply(gradients, divisor=reduction.divisor, scaled=scaled)

    def _run_natively(self, runner: Runner, first: int, count: int) -> None:
        """Device iterations outside Python; their results are kept as those of any other."""
        if self._destinations is None:
            self._destinations = runner.loop.new_destinations()
        results = self._destinations
        runner.run(self._tensors, results, first, count)
        self._machine.times.add_table(*runner.times(first, count))
        if count == self._machine.batching.iterations and self._collector.keeps_all:
            self._collector.take(results)
            self.native_whole = runner
            return
        for replica, kept in runner.kept(results, first, count):
            self._collector.add(replica, kept)

    def _accumulate(
        self, iteration: int, reduction: Reduction, extra: tuple[torch.Tensor, ...]
    ) -> Mapping[str, torch.Tensor]:
        names = self._compiled.gradients
        sums = reduction.accumulators(names)
        for step in range(self._machine.batching.accumulation):
            for replica in range(self._machine.batching.replicas):
                results = self._micro_batch(iteration, step, replica, extra)
                sums.add(replica, step, dict(zip(names, results, strict=True)))
        return sums.reduced()

    def _micro_batch(
        self, iteration: int, step: int, replica: int, extra: tuple[torch.Tensor, ...]
    ) -> Sequence[Any]:
        """Run one; keep its user outputs if they are wanted; return its gradients."""
        machine, compiled, collector = self._machine, self._compiled, self._collector
        begin = perf_counter()
        source = self._tensors
        if self._shared is not source and not machine.reader.is_first_reader(replica):
            source = self._shared
        arguments = machine.reader.micro_batch(source, iteration, step, replica)
        fed = perf_counter()
        if compiled.draws_random_numbers:
            with machine.random.micro_batch(replica):
                results = compiled.run(self._weights, arguments, replica, extra)
        else:
            results = compiled.run(self._weights, arguments, replica, extra)
        computed = perf_counter()
        if collector.wants(iteration, step):
            owned = compiled.own_outputs(results, self._weights, self._memory)
            collector.add(replica, owned)
        times = (begin, fed, computed, perf_counter())
        machine.times.add(times, returned=collector.returns(iteration, step))
        return results[compiled.user_outputs :]
