"""A step bound to its tensors: the device loop, and what a call must tell it.

A runner fits as long as weights, optimizer state and the update are the same objects; what changes
from call to call are arguments, hyper-parameters and random streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pantile.capture.hyper import Hyper
from pantile.errors import ProgramError
from pantile.lowering.native import NativeStep
from pantile.lowering.prepare import Prepared
from pantile.passes.accumulate_gradients import NEW, OLD
from pantile.program.spec import Input as InputSpec
from pantile.program.spec import InputKind, OutputKind, ScalarSpec, TensorSpec
from pantile.runtime.compiled import Compiled
from pantile.runtime.native.constants import version_of, watched
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import (
    Accumulator,
    Argument,
    ArgumentSpec,
    CompiledProgram,
    Input,
    Plan,
    ResultSpec,
    Schedule,
    Seeds,
    State,
    Threads,
    Weight,
)
from pantile.runtime.native.step_programs import TrainingKind
from pantile.runtime.optimizer import Current, Update
from pantile.runtime.random import RandomStreams, update_seeds
from pantile.runtime.weights import Weights


class Numbers:
    """The hyper-parameters of a step, in memory the loop reads."""

    def __init__(self, update: Update, current: Current) -> None:
        self._update = update
        inputs = current.variant.program.inputs
        numbers = [(inputs[i], h) for i, h in current.feed.hypers if _is_number(inputs[i])]
        self._hypers = [hyper for _, hyper in numbers]
        #: May another number need another program?
        self.guarded = bool(current.variant.guards)
        self._memory = np.zeros(len(numbers))
        self._known: list[Any] = [None] * len(numbers)
        self.tensors: dict[str, torch.Tensor] = {
            entry.name: torch.from_numpy(self._memory[i : i + 1]).view(())
            for i, (entry, _) in enumerate(numbers)
        }
        # A hyper-parameter that is a tensor is copied at every call.
        self._copied: list[tuple[torch.Tensor, Hyper]] = []
        for i, hyper in current.feed.hypers:
            spec = inputs[i].spec
            if isinstance(spec, TensorSpec):
                self.tensors[inputs[i].name] = made = torch.zeros(spec.shape, dtype=spec.dtype)
                self._copied.append((made, hyper))
        self.tensors |= update.scale_tensors()
        self._scale = update.loss_scaling

    def refresh(self) -> None:
        """Read the optimizer's numbers as of now."""
        update, known = self._update, self._known
        for i, hyper in enumerate(self._hypers):
            value = hyper.read(update.bound)
            if value is not known[i]:
                self._memory[i] = known[i] = value
        for tensor, hyper in self._copied:
            tensor.copy_(hyper.read(update.bound))
        if update.scale is not None:
            update.scale_tensors()  # the program writes the scale itself
        elif update.loss_scaling != self._scale:
            self._scale = update.loss_scaling
            self.tensors["loss_scaling"].fill_(self._scale)


def _is_number(entry: InputSpec) -> bool:
    return isinstance(entry.spec, ScalarSpec)


class Binding:
    """Finds the tensor behind every input of a step's programs."""

    def __init__(
        self,
        compiled: Compiled,
        weights: Weights,
        replicas: int,
        kind: TrainingKind | None,
        current: Current | None,
        numbers: Numbers | None,
    ) -> None:
        self._compiled, self._weights, self._replicas = compiled, weights, replicas
        self._kind, self._numbers = kind, numbers
        self._places = {e.name: i for i, e in enumerate(weights.state.entries)}
        self._state: dict[str, torch.Tensor] = {}
        if current is not None:
            entries = zip(current.variant.program.inputs, current.feed.state(), strict=True)
            self._state = {e.name: t for e, t in entries if e.kind is InputKind.OPTIMIZER}
        self._accumulators: dict[str, Accumulator] = {}
        #: The seeds of the update, which counts them on by itself.
        self.update_seeds: torch.Tensor | None = None

    def body(self, prepared: Prepared) -> list[Input]:
        """The inputs of the body, in order."""
        constants = dict(zip(_names(prepared, InputKind.CONSTANT), prepared.constants, strict=True))
        return [self._input(entry, constants) for entry in prepared.program.inputs]

    def update(self, prepared: Prepared) -> list[torch.Tensor]:
        """The inputs of the update, in order."""
        constants = dict(zip(_names(prepared, InputKind.CONSTANT), prepared.constants, strict=True))
        return [self._whole(entry, constants) for entry in prepared.program.inputs]

    def _input(self, entry: InputSpec, constants: dict[str, torch.Tensor]) -> Input:
        match entry.kind:
            case InputKind.PARAMETER | InputKind.BUFFER:
                place = self._places[entry.name]
                rows = [self._weights.row(replica)[place] for replica in range(self._replicas)]
                shared = all(row is rows[0] for row in rows)
                return State(rows[:1] if shared else rows)
            case InputKind.ARGUMENT:
                return Argument(self._compiled.call.names.index(entry.name))
            case InputKind.GRADIENT:
                return self._accumulator(entry)
            case InputKind.SEEDS:
                assert isinstance(entry.spec, TensorSpec)
                return Seeds(entry.spec.shape[0])
            case InputKind.HYPER if entry.name in (OLD, NEW):
                return Weight.OLD if entry.name == OLD else Weight.NEW
            case _:
                return State([self._shared(entry, constants)])

    def _whole(self, entry: InputSpec, constants: dict[str, torch.Tensor]) -> torch.Tensor:
        if entry.kind is InputKind.PARAMETER:
            return self._weights.whole(entry.name)
        if entry.kind is InputKind.GRADIENT:
            accumulator = self._accumulator(entry)
            return accumulator.tensors[0] if accumulator.reduced is None else accumulator.reduced
        if entry.kind is InputKind.SEEDS:
            assert isinstance(entry.spec, TensorSpec)
            self.update_seeds = torch.zeros(entry.spec.shape, dtype=torch.int64)
            return self.update_seeds
        return self._shared(entry, constants)

    def _shared(self, entry: InputSpec, constants: dict[str, torch.Tensor]) -> torch.Tensor:
        if entry.kind is InputKind.OPTIMIZER:
            return self._state[entry.name]
        if entry.kind is InputKind.CONSTANT:
            return constants[entry.name]
        assert self._numbers is not None
        return self._numbers.tensors[entry.name]

    def _accumulator(self, entry: InputSpec) -> Accumulator:
        if entry.name not in self._accumulators:
            assert self._kind is not None
            spec = self._kind.compiled.gradients[entry.name]
            dtype = self._kind.accumulator_dtype(spec.dtype)
            tensors = [torch.zeros(spec.shape, dtype=dtype) for _ in range(self._replicas)]
            groups = self._kind.reduction.grouping.groups.get(entry.name)
            reduced = None
            if groups is not None:
                reduced = torch.zeros((max(groups) + 1, *spec.shape), dtype=dtype)
            self._accumulators[entry.name] = Accumulator(tensors, groups, reduced)
        return self._accumulators[entry.name]


class Runner:
    """Runs the device iterations of a call."""

    def __init__(
        self,
        step: NativeStep,
        binding: Binding,
        schedule: Schedule,
        arguments: Sequence[ArgumentSpec],
        threads: Threads,
        random: RandomStreams,
        numbers: Numbers | None,
        returned: Any,
        *,
        one_by_one: bool,
    ) -> None:
        prepared = step.programs.body
        inputs = binding.body(prepared)
        _check_layouts(prepared, inputs)
        users = prepared.program.outputs_of(OutputKind.USER)
        results = [
            ResultSpec(e.name, e.spec.shape, e.spec.dtype)
            for e in users
            if isinstance(e.spec, TensorSpec)
        ]
        update = step.programs.update
        self.loop = Loop(
            Plan(
                CompiledProgram(step.body.library, len(prepared.program.outputs)),
                inputs,
                arguments,
                results,
                schedule,
                threads,
                CompiledProgram(step.update.library, len(update.program.outputs))
                if step.update is not None and update is not None
                else None,
                binding.update(update) if update is not None else (),
                writes=update is not None or bool(prepared.program.writes),
            )
        )
        #: The tensors that are packed once for many runs; none if nobody could tell they changed.
        self.watched = watched(inputs[place] for place in prepared.constant_inputs)
        self.schedule = schedule
        self.one_by_one = one_by_one
        self._returned = returned
        self._rows = [spec.shape[0] if spec.shape else None for spec in results]
        self._step, self.numbers, self._random = step, numbers, random
        self._update_seeds = binding.update_seeds
        self._draws = prepared.seeds > 0 or self._update_seeds is not None

    def run(
        self,
        arguments: Sequence[torch.Tensor],
        destinations: Sequence[torch.Tensor],
        first: int,
        count: int,
    ) -> None:
        """Run device iterations of a call."""
        if self.numbers is not None:
            self.numbers.refresh()
        self._seed()
        self.loop.set_constants(version_of(self.watched))
        try:
            self.loop.run(arguments, destinations, first, count)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            if self._draws:
                self._random.advance(count * self.schedule.parts.shape[1])

    def run_whole(self, pointers: Sequence[int]) -> list[torch.Tensor]:
        """Run a whole call on the memory of arguments that were checked; its results.

        The caller refreshes the numbers, if they can be other ones.
        """
        self._seed()
        self.loop.set_constants(version_of(self.watched))
        try:
            return self.loop.run_whole(pointers)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            if self._draws:
                self._random.advance(self.schedule.parts.shape[0] * self.schedule.parts.shape[1])

    def finish_whole(self, done: int) -> None:
        """Finish a whole call that a caller in C++ began."""
        try:
            self.loop.finish(done)
        except Exception as error:
            raise self._explained(error) from error

    @property
    def draws(self) -> bool:
        """Are there random numbers?"""
        return self._draws

    def _seed(self) -> None:
        """Give the random numbers of a run their seeds."""
        if not self._draws:
            return
        seed, counters = self._random.native_stream()
        self.loop.seed, self.loop.counters = seed, counters
        if self._update_seeds is not None:
            found = update_seeds(seed, counters[0], self._update_seeds.numel())
            self._update_seeds.copy_(torch.tensor(found, dtype=torch.int64))

    def times(self, first: int, count: int) -> tuple[Any, Any]:
        """When the micro-batches of the latest run went in and out, and which were returned."""
        returned = self._returned[first : first + count]
        return self.loop.times[first : first + count], returned.reshape(-1)

    def all_times(self) -> tuple[Any, Any]:
        """The same for a whole step."""
        return self.times(0, self.schedule.parts.shape[0])

    def kept(
        self, results: Sequence[torch.Tensor], first: int, count: int
    ) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """The results of device iterations one by one: replica, tensors."""
        schedule = self.schedule
        only = schedule.results == 1
        for iteration in range(first, first + count):
            for step in np.flatnonzero(schedule.wanted[iteration]):
                for replica, slot in enumerate(schedule.slots[iteration, step].tolist()):
                    yield (
                        replica,
                        [
                            tensor if only else _part(tensor, rows, slot)
                            for tensor, rows in zip(results, self._rows, strict=True)
                        ],
                    )

    def _explained(self, error: Exception) -> BaseException:
        for program in (self._step.body, self._step.update):
            if program is not None and program.calls.error is not None:
                cause, program.calls.error = program.calls.error, None
                return cause
        return error


def _part(tensor: torch.Tensor, rows: int | None, slot: int) -> torch.Tensor:
    return tensor[slot] if rows is None else tensor.narrow(0, slot * rows, rows)


def _names(prepared: Prepared, kind: InputKind) -> list[str]:
    return [entry.name for entry in prepared.program.inputs_of(kind)]


def _check_layouts(prepared: Prepared, inputs: Sequence[Input]) -> None:
    """The machine code knows shapes and strides: what it is given must have them."""
    for node, entry, given in zip(
        prepared.program.placeholders, prepared.program.inputs, inputs, strict=True
    ):
        if not isinstance(given, (State, Accumulator)):
            continue
        value = node.meta["val"]
        expected = (tuple(value.shape), _strides(value), value.dtype)
        for tensor in given.tensors:
            if (tuple(tensor.shape), _strides(tensor), tensor.dtype) != expected:
                raise ProgramError(
                    f"{entry.kind.value} {entry.name!r} has shape {list(tensor.shape)}, strides "
                    f"{list(tensor.stride())} and {tensor.dtype}; the program was made for "
                    f"{expected}",
                    fix="nothing: the model runs on the reference engine",
                )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that matter: not those of dims of size one."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in pairs if size != 1)
