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

from pantile.passes.automatic_loss_scaling import SCALE
from pantile.runtime.anchors import Anchors
from pantile.runtime.compiled import Compiled
from pantile.runtime.counters import StepTimes
from pantile.runtime.inputs import InputReader
from pantile.runtime.optimizer import Update, UpdateKind
from pantile.runtime.outputs import Batching, OutputCollector
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Accumulators, Reduction
from pantile.runtime.weights import Weights, memory_of

if TYPE_CHECKING:
    from pantile.runtime.native.engine import NativeEngine
    from pantile.runtime.native.runner import Runner
    from pantile.runtime.pipeline.batch import Times
    from pantile.runtime.pipeline.plan import Plan


@dataclass(frozen=True, eq=False)
class Machine:
    """What the steps of one executor have in common."""

    batching: Batching
    reader: InputReader
    random: RandomStreams
    times: StepTimes
    anchors: Anchors


def update_kind(compiled: Compiled, reduction: Reduction) -> UpdateKind:
    """What the update after these micro-batches is of."""
    return UpdateKind(
        tuple(compiled.gradients),
        reduction.divisor,
        compiled.variant.scaled,
        compiled.watched_gradients,
        reduction.summed if compiled.watched_gradients else 1,
    )


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
        machine.anchors.begin()

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
            if self._compiled.pipeline is not None:
                last = end if engine is None else iteration + 1
                turns = [(number, 0) for number in range(iteration, last)]
                self._run_pipeline(self._compiled.pipeline, turns, (), None)
                iteration = last
                continue
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
        extra = (update.scale_tensors()[SCALE],) if scaled else ()
        gradients = self._accumulate(iteration, reduction, extra)
        anchors = self._machine.anchors
        anchors.begin_update(iteration, update)
        if gradients:
            with self._machine.random.update():
                update.apply(gradients, update_kind(self._compiled, reduction))
        if anchors.all:
            values = {name: self._weights.whole(name) for name in gradients}
            anchors.end_update(iteration, update, values)

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
        if self._compiled.pipeline is not None:
            turns = [(iteration, step) for step in range(self._machine.batching.accumulation)]
            self._run_pipeline(self._compiled.pipeline, turns, extra, sums)
            return sums.reduced()
        for step in range(self._machine.batching.accumulation):
            for replica in range(self._machine.batching.replicas):
                results = self._micro_batch(iteration, step, replica, extra)
                sums.add(replica, step, dict(zip(names, results, strict=True)))
        return sums.reduced()

    def _micro_batch(
        self, iteration: int, step: int, replica: int, extra: tuple[torch.Tensor, ...]
    ) -> Sequence[Any]:
        """Run one; keep its user outputs if they are wanted; return its gradients."""
        machine, compiled = self._machine, self._compiled
        begin = perf_counter()
        arguments = self._arguments(iteration, step, replica)
        fed = perf_counter()
        if compiled.draws_random_numbers:
            with machine.random.micro_batch(replica):
                results = compiled.run(self._weights, arguments, replica, extra)
        else:
            results = compiled.run(self._weights, arguments, replica, extra)
        self._keep(iteration, step, replica, results, (begin, fed, perf_counter()))
        kept = compiled.user_outputs + len(compiled.gradients)
        machine.anchors.micro_batch(iteration, step, replica, results[kept:])
        return results[compiled.user_outputs : kept]

    def _arguments(self, iteration: int, step: int, replica: int) -> Sequence[torch.Tensor]:
        """What one replica reads at a given time."""
        source = self._tensors
        if self._shared is not source and not self._machine.reader.is_first_reader(replica):
            source = self._shared
        return self._machine.reader.micro_batch(source, iteration, step, replica)

    def _keep(
        self,
        iteration: int,
        step: int,
        replica: int,
        results: Sequence[Any],
        times: tuple[float, float, float],
    ) -> None:
        """Keep the user outputs of a micro-batch if they are wanted; note its times."""
        collector = self._collector
        if collector.wants(iteration, step):
            owned = self._compiled.own_outputs(results, self._weights, self._memory)
            collector.add(replica, owned)
        returned = collector.returns(iteration, step)
        self._machine.times.add((*times, perf_counter()), returned=returned)

    def _run_pipeline(
        self,
        plan: Plan,
        turns: Sequence[tuple[int, int]],
        extra: tuple[torch.Tensor, ...],
        sums: Accumulators | None,
    ) -> None:
        """Micro-batches without an update between them, through the stages of the model."""
        # Imported late: most models have one stage.
        from pantile.runtime.pipeline.batch import Batch

        def values(iteration: int, step: int, replica: int) -> Sequence[Any]:
            arguments = self._arguments(iteration, step, replica)
            return self._compiled.values(self._weights, arguments, replica, extra)

        def keep(
            iteration: int, step: int, replica: int, results: Sequence[Any], span: Times
        ) -> None:
            begin, end = span
            self._keep(iteration, step, replica, results, (begin, begin, end))

        Batch(
            plan,
            self._machine.batching.replicas,
            self._machine.random,
            values,
            sums.add if sums is not None else _no_gradients,
            self._collector.wants,
            keep,
        ).run(turns)


def _no_gradients(replica: int, step: int, gradients: Mapping[str, torch.Tensor]) -> None:
    """An inference program has none."""
