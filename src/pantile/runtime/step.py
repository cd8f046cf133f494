"""One step: D device iterations of G micro-batches on R replicas, then an update each.

    for d in D:                          device iterations
        for a in G:                      accumulation steps
            for r in R:                  replicas, each with its rows, buffers, random stream
                gradients(...)           adds to the replica's accumulators
        reduce over replicas, divide, update
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pantile.program.spec import InputKind, OutputKind
from pantile.runtime.compiled import Compiled, own_copies
from pantile.runtime.inputs import InputReader
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, OutputCollector
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Reduction
from pantile.runtime.weights import Weights

Extra = dict[tuple[InputKind, str], Any]


class StepRunner:
    """Runs steps of one executor."""

    def __init__(
        self,
        batching: Batching,
        reader: InputReader,
        weights: Weights,
        random: RandomStreams,
        reduction: Reduction,
    ) -> None:
        self._batching = batching
        self._reader = reader
        self._weights = weights
        self._random = random
        self._reduction = reduction

    def infer(
        self, compiled: Compiled, tensors: Sequence[torch.Tensor], collector: OutputCollector
    ) -> None:
        """All micro-batches, forward only."""
        for iteration in range(self._batching.iterations):
            for replica in range(self._batching.replicas):
                self._micro_batch(compiled, tensors, collector, (iteration, 0, replica), {})

    def train(
        self,
        compiled: Compiled,
        tensors: Sequence[torch.Tensor],
        collector: OutputCollector,
        update: Update,
    ) -> None:
        """All micro-batches and updates."""
        scale = update.loss_scaling
        extra: Extra = {(InputKind.HYPER, "loss_scaling"): torch.tensor(scale)}
        for iteration in range(self._batching.iterations):
            gradients = self._accumulate(compiled, tensors, collector, iteration, extra)
            if compiled.gradients:
                update.apply(gradients, divisor=self._reduction.divisor, scaled=scale != 1.0)

    def _accumulate(
        self,
        compiled: Compiled,
        tensors: Sequence[torch.Tensor],
        collector: OutputCollector,
        iteration: int,
        extra: Extra,
    ) -> Mapping[str, torch.Tensor]:
        sums = self._reduction.accumulators(compiled.gradients)
        for step in range(self._batching.accumulation):
            for replica in range(self._batching.replicas):
                place = (iteration, step, replica)
                results = self._micro_batch(compiled, tensors, collector, place, extra)
                found = dict(zip(compiled.gradients, results, strict=True))
                sums.add(replica, step, found)
        return sums.reduced()

    def _micro_batch(
        self,
        compiled: Compiled,
        tensors: Sequence[torch.Tensor],
        collector: OutputCollector,
        place: tuple[int, int, int],
        extra: Extra,
    ) -> Sequence[Any]:
        """Run one; keep its user outputs if they are wanted; return its gradients."""
        iteration, step, replica = place
        arguments = self._reader.micro_batch(tensors, iteration, step, replica)
        with self._random.micro_batch(replica):
            results = compiled.run(self._weights, arguments, replica, extra)
        users = len(compiled.program.outputs_of(OutputKind.USER))
        if collector.wants(iteration, step):
            state = [self._weights.value(e.name, replica) for e in self._weights.state.entries]
            constants = list(compiled.program.constants.values())
            collector.add(replica, own_copies(results[:users], [*arguments, *state, *constants]))
        return results[users:]
