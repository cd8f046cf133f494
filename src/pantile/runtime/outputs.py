"""Which micro-batch results come back, and in what shape (spec 2.4).

    All       every micro-batch of every replica, concatenated on dim 0
    EveryN    the last device iteration of each group of N
    Final     the last micro-batch of each replica
    Sum       the sum over all micro-batches, one per replica

With one result the output keeps its shape; with n of them a 0-d output becomes 1-d of length n.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from pantile.enums import OutputMode
from pantile.errors import Error, OptionError

_NARROWED = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
}


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

    def is_last(self, iteration: int, step: int) -> bool:
        """Is this the last micro-batch of a replica in the step?"""
        return iteration == self.iterations - 1 and step == self.accumulation - 1


def check_period(mode: OutputMode, period: int, batching: Batching) -> None:
    """Refuse a return period that leaves a rest of device iterations."""
    if mode is OutputMode.EveryN and batching.iterations % period:
        raise OptionError(
            f"outputMode(EveryN, {period}): the period must divide deviceIterations "
            f"({batching.iterations})",
            fix=f"use a divisor of {batching.iterations}",
        )


class OutputCollector:
    """Gathers the outputs of one step."""

    def __init__(self, mode: OutputMode, period: int, batching: Batching) -> None:
        self._mode, self._period, self._batching = mode, period, batching
        self._kept: list[Sequence[torch.Tensor]] = []
        self._sums: list[list[torch.Tensor] | None] = [None] * batching.replicas
        self._joined: list[torch.Tensor] | None = None

    def wants(self, iteration: int, step: int) -> bool:
        """Will the results of this micro-batch be returned?"""
        if self._mode is OutputMode.Final:
            return self._batching.is_last(iteration, step)
        if self._mode is OutputMode.EveryN:
            return (iteration + 1) % self._period == 0
        return True

    def returns(self, iteration: int, step: int) -> bool:
        """Does this micro-batch complete a result? A sum is complete after the last one."""
        if self._mode is OutputMode.Sum:
            return self._batching.is_last(iteration, step)
        return self.wants(iteration, step)

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

    @property
    def keeps_all(self) -> bool:
        """Are results returned as they are, side by side?"""
        return self._mode is not OutputMode.Sum

    def take(self, joined: Sequence[torch.Tensor]) -> None:
        """Results of the whole step that lie side by side already."""
        self._joined = list(joined)

    def gathered(self) -> list[torch.Tensor]:
        """One tensor per output of the model."""
        if self._joined is not None:
            return self._joined
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


class _NoBackward:
    """The `backward` of a returned tensor.

    In a file it becomes an empty OrderedDict, which `torch.load` accepts: a saved loss must not
    need this package to be read.
    """

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise Error(
            "backward() cannot be called explicitly on the output of a model on an IPU",
            fix="remove the call: a training step has already computed gradients and updated the "
            "weights",
        )

    def __deepcopy__(self, memo: Any) -> _NoBackward:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (OrderedDict, ())


NO_BACKWARD = _NoBackward()
"""What every returned tensor has as its `backward`."""


def finished(tensor: torch.Tensor, *, strict: bool) -> torch.Tensor:
    """A returned tensor: narrowed as the device would in strict mode, and not differentiable."""
    if strict and tensor.dtype in _NARROWED:
        tensor = tensor.to(_NARROWED[tensor.dtype])
    tensor.backward = NO_BACKWARD  # type: ignore[method-assign]
    return tensor
