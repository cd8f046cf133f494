"""Which micro-batch results come back, and in what shape (spec 2.4).

    All       every micro-batch of every replica, concatenated on dim 0
    EveryN    the last device iteration of each group of N
    Final     the last micro-batch of each replica
    Sum       the sum over all micro-batches, one per replica

With one result the output keeps its shape; with n of them a 0-d output becomes 1-d of length n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pantile.enums import OutputMode
from pantile.errors import OptionError


@dataclass(frozen=True)
class Batching:
    """The batch algebra of one step."""

    iterations: int
    accumulation: int
    replicas: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step, over all replicas."""
        return self.iterations * self.accumulation * self.replicas


class OutputCollector:
    """Gathers the outputs of one step."""

    def __init__(self, mode: OutputMode, period: int, batching: Batching) -> None:
        if mode is OutputMode.EveryN and batching.iterations % period:
            raise OptionError(
                f"outputMode(EveryN, {period}): the period must divide deviceIterations "
                f"({batching.iterations})",
                fix=f"use a divisor of {batching.iterations}",
            )
        self._mode, self._period, self._batching = mode, period, batching
        self._kept: list[Sequence[torch.Tensor]] = []
        self._sums: list[list[torch.Tensor] | None] = [None] * batching.replicas

    def wants(self, iteration: int, step: int) -> bool:
        """Will the results of this micro-batch be returned?"""
        if self._mode is OutputMode.Final:
            last = self._batching
            return iteration == last.iterations - 1 and step == last.accumulation - 1
        if self._mode is OutputMode.EveryN:
            return (iteration + 1) % self._period == 0
        return True

    def add(self, replica: int, results: Sequence[torch.Tensor]) -> None:
        """Keep the results of one micro-batch; they are the collector's own tensors."""
        if self._mode is not OutputMode.Sum:
            self._kept.append(results)
            return
        total = self._sums[replica]
        if total is None:
            self._sums[replica] = list(results)
        else:
            self._sums[replica] = [a + b for a, b in zip(total, results, strict=True)]

    def gathered(self) -> list[torch.Tensor]:
        """One tensor per output of the model."""
        kept = self._kept
        if self._mode is OutputMode.Sum:
            kept = [total for total in self._sums if total is not None]
        if len(kept) == 1:
            return list(kept[0])
        return [_joined(parts) for parts in zip(*kept, strict=True)]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    if parts[0].dim() == 0:
        return torch.stack(list(parts))
    return torch.cat(list(parts))
