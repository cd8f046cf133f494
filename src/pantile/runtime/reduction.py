"""How gradients of micro-batches and replicas become one gradient (spec 2.4, 2.9).

    Sum     g = sum over G x R x P                Mean    g = sum / (G x R x P)

For Mean the strategy says when the division happens: Post divides the final sum, Running keeps a
running mean in the accumulator. Each replica accumulates on its own, then replicas are added in
order, so that the bits do not depend on who is first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pantile.enums import MeanReductionStrategy, ReductionType
from pantile.options import Options
from pantile.program.spec import TensorSpec


@dataclass(frozen=True)
class Grouping:
    """Parameters of which each group of replicas has its own: name -> group of each replica.

    `per_replica` are those that have an entry for each replica all the same.
    """

    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    per_replica: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reduction:
    """The reduction of one executor."""

    accumulation: int
    replicas: int
    mean: bool
    running: bool
    accumulator_type: torch.dtype | None = None
    grouping: Grouping = Grouping()

    @staticmethod
    def of(
        options: Options,
        accumulator_type: torch.dtype | None,
        grouping: Grouping,
        *,
        running: bool,
    ) -> Reduction:
        """As the options say."""
        training = options.Training
        kind = ReductionType(training.accumulation_and_replication_reduction_type)
        strategy = training.meanAccumulationAndReplicationReductionStrategy
        return Reduction(
            training.gradient_accumulation,
            options.replication_factor,
            kind is ReductionType.Mean,
            running or MeanReductionStrategy(strategy) is MeanReductionStrategy.Running,
            accumulator_type,
            grouping,
        )

    @property
    def divisor(self) -> int:
        """What the accumulated gradient is divided by before the update."""
        if not self.mean:
            return 1
        return self.replicas if self.running else self.accumulation * self.replicas

    @property
    def summed(self) -> int:
        """How many gradients an accumulated one is the sum of."""
        return self.divisor if self.mean else self.accumulation * self.replicas

    def accumulators(self, gradients: Mapping[str, TensorSpec]) -> Accumulators:
        """Empty accumulators for one device iteration."""
        return Accumulators(self, gradients)


class Accumulators:
    """The gradients of one device iteration, per replica."""

    def __init__(self, reduction: Reduction, gradients: Mapping[str, TensorSpec]) -> None:
        self._reduction = reduction
        self._names = tuple(gradients)
        self._sums: list[dict[str, torch.Tensor]] = [{} for _ in range(reduction.replicas)]

    def add(self, replica: int, step: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add gradients of micro-batch `step` of a replica: all, or those that are there."""
        dtype = self._reduction.accumulator_type
        if dtype is not None:
            gradients = {
                n: g.to(dtype) if g.is_floating_point() else g for n, g in gradients.items()
            }
        if self._reduction.accumulation == 1:
            # A single gradient is used as it is.
            self._sums[replica].update(gradients)
        elif step == 0:
            self._sums[replica].update({name: g.clone() for name, g in gradients.items()})
        elif self._reduction.running and self._reduction.mean:
            count = step + 1
            for name, gradient in gradients.items():
                total = self._sums[replica][name]
                total.mul_((count - 1) / count).add_(gradient, alpha=1 / count)
        else:
            for name, gradient in gradients.items():
                self._sums[replica][name].add_(gradient)

    def reduced(self) -> dict[str, torch.Tensor]:
        """Replicas added up; parameters with groups stacked, one gradient per group."""
        groups = self._reduction.grouping.groups
        return {name: self._reduce(name, groups.get(name)) for name in self._names}

    def _reduce(self, name: str, groups: tuple[int, ...] | None) -> torch.Tensor:
        parts = [sums[name] for sums in self._sums]
        if groups is None:
            return _sum(parts)
        count = max(groups) + 1
        members = [[p for p, g in zip(parts, groups, strict=True) if g == i] for i in range(count)]
        sums = [_sum(member) for member in members]
        if name in self._reduction.grouping.per_replica:
            sums = [sums[group] for group in groups]
        return torch.stack(sums)


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
