"""What a device loop runs: programs, where their inputs come from, and the schedule.

    inputs of the body                            results
    ──────────────────                            ───────
    State        tensors that stay                the first outputs of the body, of the
    Argument     rows of an argument              micro-batches that are wanted, side by
    Accumulator  zero at first, summed at last    side in the tensors the caller gives
    Seeds        new for each micro-batch
    Weight       of the running mean

Everything is checked here, once, because the loop itself only sees pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np
import torch

from pantile.errors import ExecutionError
from pantile.runtime.inputs import Slicing
from pantile.runtime.native.structures import SUM_CODES, ProgramEntry


def broken_plan(message: str) -> ExecutionError:
    """A plan that contradicts itself: a mistake of this package, not of the user."""
    return ExecutionError(
        f"the native device loop cannot be made: {message}",
        fix='run with Options.engine("reference"), and report this as a bug',
    )


@dataclass(frozen=True, eq=False)
class State:
    """The same tensor in every run: one for each replica, or one that all share."""

    tensors: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Argument:
    """The rows a replica reads of an argument of the call.

    `index` says which argument, for all replicas or for each: a program that writes to rows that
    several replicas read gives the later ones a copy of the argument.
    """

    index: int | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Accumulator:
    """A tensor per replica, zero at the start of each device iteration.

    After the last accumulation step those of all replicas are added into the first one. With
    `groups` (the group of each replica) those of each group are added into a row of `reduced`.
    """

    tensors: Sequence[torch.Tensor]
    groups: Sequence[int] | None = None
    reduced: torch.Tensor | None = None


@dataclass(frozen=True)
class Seeds:
    """An int64 tensor of so many seeds, new for each micro-batch."""

    count: int


class Weight(Enum):
    """A factor of the running mean, a 0-d float64 tensor: mean = OLD * mean + NEW * gradient."""

    OLD = "old"
    NEW = "new"


Input = State | Argument | Accumulator | Seeds | Weight


@dataclass(frozen=True)
class ArgumentSpec:
    """An argument of a call; `parts` micro-batches lie side by side in its dim 0."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: int = 1

    @property
    def part_shape(self) -> tuple[int, ...]:
        """What one micro-batch reads."""
        if not self.shape:
            return ()
        return (self.shape[0] // self.parts, *self.shape[1:])


@dataclass(frozen=True)
class ResultSpec:
    """An output of the body that is returned: what one micro-batch gives.

    `by_torch` has it copied by torch, as complex numbers always are: their conjugation may be
    pending. A real view of such a number needs it too.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    by_torch: bool = False

    def joined(self, count: int) -> tuple[int, ...]:
        """The shape of so many of them side by side."""
        if count == 1:
            return self.shape
        return (count * self.shape[0], *self.shape[1:]) if self.shape else (count,)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which rows each micro-batch reads, and where its results go.

    `parts` and `slots` are indexed [iteration, step, replica], `wanted` [iteration, step].
    """

    parts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    slots: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    wanted: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

    @staticmethod
    def of(slicing: Slicing, wants: Callable[[int, int], bool]) -> Schedule:
        """Rows as `slicing` says; results of what `wants` accepts, in the order of the run."""
        shape = (slicing.iterations, slicing.accumulation, slicing.replicas)
        parts = np.fromiter((slicing.part(*at) for at in np.ndindex(*shape)), np.int64)
        wanted = np.fromiter((wants(*at) for at in np.ndindex(*shape[:2])), np.uint8)
        kept = np.repeat(wanted, slicing.replicas).astype(np.int64)
        slots = (np.cumsum(kept) - 1) * kept
        return Schedule(parts.reshape(shape), slots.reshape(shape), wanted.reshape(shape[:2]))

    @property
    def replicas(self) -> int:
        """How many replicas run."""
        return int(self.parts.shape[2])

    @property
    def results(self) -> int:
        """How many micro-batches return results."""
        return int(self.wanted.sum()) * self.replicas

    def check(self) -> None:
        """Refuse tables that do not fit each other."""
        shape = self.parts.shape
        if len(shape) != 3 or 0 in shape:
            raise broken_plan(f"the schedule has the shape {list(shape)}")
        if self.slots.shape != shape or self.wanted.shape != shape[:2]:
            raise broken_plan("the tables of the schedule have different shapes")
        taken = np.sort(self.slots[self.wanted.astype(bool)], axis=None)
        if not np.array_equal(taken, np.arange(self.results)):
            raise broken_plan("the slots of the results are not 0, 1, 2 …")
        if self.parts.min() < 0:
            raise broken_plan("the schedule reads before the start of an argument")


@dataclass(frozen=True)
class Threads:
    """How many threads run replicas, and how many each of them and the update may use.

    Zero of the last two leaves the number as it is.
    """

    workers: int = 1
    each: int = 0
    update: int = 0


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A loaded program and how many outputs it has."""

    library: ctypes.CDLL
    outputs: int

    def entry(self) -> ProgramEntry:
        """Its functions."""
        addresses = []
        for name in ("create", "destroy", "run", "error"):
            try:
                function = getattr(self.library, f"pantile_{name}")
            except AttributeError as error:
                raise broken_plan(f"the program has no function pantile_{name}") from error
            addresses.append(ctypes.cast(function, ctypes.c_void_p))
        for name in ("keep", "setups"):  # only of our own kernels
            function = getattr(self.library, f"pantile_{name}", None)
            addresses.append(ctypes.cast(function or 0, ctypes.c_void_p))
        return ProgramEntry(*addresses)


@dataclass(frozen=True, eq=False)
class Plan:
    """One device loop. `first_replica` numbers the replicas of several processes.

    One that `writes` changes tensors other loops may have made something of.
    """

    body: CompiledProgram
    inputs: Sequence[Input]
    arguments: Sequence[ArgumentSpec]
    results: Sequence[ResultSpec]
    schedule: Schedule
    threads: Threads = Threads()
    update: CompiledProgram | None = None
    update_inputs: Sequence[torch.Tensor] = ()
    first_replica: int = 0
    writes: bool = True

    def check(self) -> None:
        """Refuse what would make the loop read or write where it must not."""
        self.schedule.check()
        if len(self.results) > self.body.outputs:
            raise broken_plan(f"{len(self.results)} results, but {self.body.outputs} outputs")
        if self.threads.workers < 1 or min(self.threads.each, self.threads.update) < 0:
            raise broken_plan(f"{self.threads}")
        for spec in self.arguments:
            self._check_argument(spec)
        for number, given in enumerate(self.inputs):
            self._check_input(f"input {number}", given)
        for number, tensor in enumerate(self.update_inputs):
            _check_plain(f"input {number} of the update", tensor)
        if self.update_inputs and self.update is None:
            raise broken_plan("there are inputs of an update, but no update")

    def _check_argument(self, spec: ArgumentSpec) -> None:
        rows = spec.shape[0] if spec.shape else 1
        if spec.parts < 1 or rows % spec.parts:
            raise broken_plan(f"argument {spec.name!r}: {rows} rows in {spec.parts} parts")
        if self.schedule.parts.max() >= spec.parts:
            raise broken_plan(f"the schedule reads past the end of argument {spec.name!r}")

    def _check_input(self, name: str, given: Input) -> None:
        replicas = self.schedule.replicas
        match given:
            case State(tensors):
                if len(tensors) not in (1, replicas):
                    raise broken_plan(f"{name} has {len(tensors)} tensors for {replicas} replicas")
                for tensor in tensors:
                    _check_plain(name, tensor)
            case Argument(index):
                indices = (index,) * replicas if isinstance(index, int) else index
                if len(indices) != replicas or not all(
                    0 <= i < len(self.arguments) for i in indices
                ):
                    raise broken_plan(f"{name} reads arguments {indices}")
                _check_alike(name, [self.arguments[i] for i in indices])
            case Accumulator():
                _check_accumulator(name, given, replicas)
            case Seeds(count):
                if count < 0:
                    raise broken_plan(f"{name} has {count} seeds")


def _check_alike(name: str, specs: Sequence[ArgumentSpec]) -> None:
    if len({(spec.part_shape, spec.dtype) for spec in specs}) != 1:
        raise broken_plan(f"{name} reads arguments of different shapes")


def _check_plain(name: str, tensor: torch.Tensor) -> None:
    if not (tensor.device.type == "cpu" and tensor.layout is torch.strided):
        raise broken_plan(f"{name} is on {tensor.device} with layout {tensor.layout}")


def _check_accumulator(name: str, given: Accumulator, replicas: int) -> None:
    tensors = given.tensors
    if len(tensors) != replicas:
        raise broken_plan(f"{name} has {len(tensors)} accumulators for {replicas} replicas")
    first = tensors[0]
    for tensor in tensors:
        _check_plain(name, tensor)
        if tensor.dtype not in SUM_CODES or not _is_dense(tensor):
            raise broken_plan(f"{name} is {tensor.dtype} with strides {tensor.stride()}")
        same = (first.dtype, first.shape, first.stride())
        if (tensor.dtype, tensor.shape, tensor.stride()) != same:
            raise broken_plan(f"the accumulators of {name} differ")
    if len({tensor.data_ptr() for tensor in tensors}) < replicas and first.numel():
        raise broken_plan(f"the accumulators of {name} share memory")
    if given.groups is not None or given.reduced is not None:
        _check_groups(name, given, first)


def _check_groups(name: str, given: Accumulator, first: torch.Tensor) -> None:
    groups, reduced = given.groups, given.reduced
    if groups is None or reduced is None or len(groups) != len(given.tensors):
        raise broken_plan(f"{name} needs a group for each replica, and a tensor for the sums")
    count = max(groups) + 1
    if set(groups) != set(range(count)):
        raise broken_plan(f"the groups of {name} are {list(groups)}")
    _check_plain(name, reduced)
    if (
        reduced.dtype is not first.dtype
        or reduced.shape != (count, *first.shape)
        or (count > 1 and reduced.stride(0) != first.numel())
        or reduced.stride()[1:] != first.stride()
    ):
        raise broken_plan(f"the sums of {name} have the shape {list(reduced.shape)}")


def _is_dense(tensor: torch.Tensor) -> bool:
    """Does the tensor fill its memory without gaps or overlaps, in some order of dims?"""
    dims = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size != 1
    )
    filled = [prod(size for _, size in dims[:i]) for i in range(len(dims))]
    return tensor.numel() == 0 or [stride for stride, _ in dims] == filled
