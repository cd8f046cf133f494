"""A compiled Paddle program: what one `Executor.run` does.

    feeds    [bps · G · R · micro-batch, …]  →  [bps · G · R, <declared shape>]
    run      bps times: G · R micro-batches, one update with the mean of their gradients
    fetches  every micro-batch: [R] [G] [bps] <shape>; a lone number is [1]

The weights are copied from the scope when the session is made; the scope sees them again after
`weights_to_host`. Learning rates are read from the scope before every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from pantile.enums import OutputMode, ReductionType
from pantile.errors import InputMismatch, OperandError, StateError
from pantile.logging import logger
from pantile.options import Options, PipelinedExecution, ShardedExecution, Stage
from pantile.paddle.call import Table
from pantile.paddle.description import Description, Variable
from pantile.paddle.inlining import inlined
from pantile.paddle.network import Network
from pantile.paddle.parts import (
    Parts,
    check_translated,
    divide,
    place_of,
    pruned,
    shared_out,
)
from pantile.paddle.scope import Array, Scope, as_array, as_tensor
from pantile.paddle.update import ProgramUpdate
from pantile.paddle.update_modes import UpdateModes, with_modes
from pantile.runtime.executor import PoplarExecutor
from pantile.runtime.wrap import inferenceModel, trainingModel

Progress = Callable[[int], None]
"""Told how many percent of a compilation are done."""


@dataclass(frozen=True)
class Settings:
    """What of a strategy decides how a program is run."""

    training: bool = False
    micro_batch: int = 1
    batches_per_step: int = 1
    accumulation: int | None = None
    replicas: int | None = None
    mean_gradients: bool = True
    loss_scaling: float = 1.0
    seed: int | None = None
    dynamic_batch: bool = False
    any_batch: bool = False
    half: bool = False
    sharded: bool = False
    pipelined: bool = False
    devices: int = 1
    shows_progress: bool = True
    checks_numbers: bool = False
    rounds_at_random: bool = False
    modes: UpdateModes = field(default_factory=UpdateModes)

    # micro_batch        what a first dim of -1 is compiled for
    # dynamic_batch      fewer rows are filled up, and what comes back is cut again
    # any_batch          another number of rows compiles another program
    # half               float32 becomes float16 inside
    # checks_numbers     a NaN or an overflow is an error
    # rounds_at_random   results of float16 go up or down in proportion to their distance
    # sharded            operators have stages: their own, or by sharing them out among `devices`

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one run."""
        return self.batches_per_step * (self.accumulation or 1) * (self.replicas or 1)

    @property
    def leading(self) -> list[int]:
        """The dims that are put before the shape of what is fetched."""
        dims = [] if self.replicas is None else [self.replicas]
        dims += [] if self.accumulation is None else [self.accumulation]
        return dims + ([self.batches_per_step] if self.batches_per_step > 1 else [])

    def options(self) -> Options:
        """The same for the core's executor."""
        options = Options().strict(False).deviceIterations(self.batches_per_step)
        options.showCompilationProgressBar(self.shows_progress)
        options.replicationFactor(self.replicas or 1).outputMode(OutputMode.All)
        if self.training:
            kind = ReductionType.Mean if self.mean_gradients else ReductionType.Sum
            options.Training.accumulationAndReplicationReductionType(kind)
            options.Training.gradientAccumulation(self.accumulation or 1)
        else:  # without an update, accumulation steps are more iterations
            options.deviceIterations(self.batches_per_step * (self.accumulation or 1))
        if self.seed is not None:
            options.randomSeed(self.seed)
        if self.checks_numbers:
            options.Precision.enableFloatingPointExceptions(True)
        if self.rounds_at_random:
            options.Precision.enableStochasticRounding(True)
        return options


class Session:
    """A program, its weights on the (software) device, and its executors."""

    def __init__(
        self,
        description: Description,
        table: Table,
        *,
        feeds: Sequence[str],
        fetches: Sequence[str],
        scope: Scope,
        settings: Settings,
        loss: str | None = None,
    ) -> None:
        self.settings = settings
        self.feeds, self.fetches = tuple(feeds), tuple(fetches)
        main = inlined(description, table)
        parts = divide(main, training=settings.training, loss=loss)
        self.parts = pruned(with_modes(parts, settings.modes), fetches)
        if settings.sharded and settings.devices > 1 and not _stages(self.parts):
            self.parts = shared_out(self.parts, settings.devices)
        check_translated((*self.parts.forward, *self.parts.update), table)
        self._table = table
        self._scope = scope
        self._evaluator: PoplarExecutor | None = None
        state = self._state()
        self._written = tuple(name for name in state if name in self.parts.written())
        self.network, self._update = self._built(state)
        self.executor = self._executor(self.network)

    # Building

    def _state(self) -> dict[str, torch.Tensor]:
        """The persistable variables the program needs, from the scope."""
        found: dict[str, torch.Tensor] = {}
        fetched = [n for n in self.fetches if self._variable(n).persistable]
        for name in (*self.parts.needs(), *fetched):
            if name in self.feeds or name in found:
                continue
            tensor = self._scope.find(name)
            if tensor is not None:
                found[name] = tensor
            elif self._variable(name).persistable:
                raise OperandError(
                    f"variable {name!r} has no value in the scope",
                    fix="run the startup program, or load the parameters, before compiling",
                )
        return found

    def _variable(self, name: str) -> Variable:
        return self.parts.variables.get(name, Variable(name))

    def _built(self, state: Mapping[str, torch.Tensor]) -> tuple[Network, ProgramUpdate | None]:
        parameters = {name: nn.Parameter(state[name]) for name in self.parts.trained}
        read_forward = {name for op in self.parts.forward for name in op.reads} | {*self.fetches}
        own = {name: parameters.get(name, state[name]) for name in state if name in read_forward}
        own.update(parameters)
        network = Network(
            self.parts,
            self._table,
            feeds=self.feeds,
            fetches=self.fetches,
            state=own,
            half=self.settings.half,
            placed=self.settings.sharded,
        )
        if not self.settings.training:
            return network, None
        rest = {name: tensor for name, tensor in state.items() if name not in own}
        _advance_powers(self.parts, rest)
        read = {name: tensor for name, tensor in rest.items() if name not in self._written}
        update = ProgramUpdate(
            self.parts,
            self._table,
            parameters=parameters,
            state={name: tensor for name, tensor in rest.items() if name in self._written},
            read=read,
        )
        return network, update

    def _executor(self, network: Network) -> PoplarExecutor:
        options = self.settings.options()
        stages = _stages(self.parts)
        if self.settings.sharded and stages:
            kind = PipelinedExecution if self.settings.pipelined else ShardedExecution
            options.setExecutionStrategy(kind(*stages))
        if self._update is None:
            return inferenceModel(network, options)
        self._update.loss_scaling = self.settings.loss_scaling
        return trainingModel(network, options, self._update)

    # Compiling

    def compile(self, progress: Progress | None = None) -> None:
        """Compile now, if the shapes of all feeds are known; else at the first run."""
        shapes = [self._shape(name) for name in self.feeds]
        tell = _Steps(progress)
        tell(0)
        if all(size >= 0 for shape in shapes for size in shape):
            inputs = [
                torch.zeros([self.settings.micro_batches, *shape], dtype=self._dtype(name))
                for name, shape in zip(self.feeds, shapes, strict=True)
            ]
            self.executor._compiler.progress.listener = tell
            self.executor.compile(*inputs)
            self.executor._start_natively(*inputs)
        tell(100)

    def _shape(self, name: str) -> list[int]:
        """The declared shape of a feed, with the micro-batch in the place of a first -1."""
        shape = list(self._variable(name).shape)
        if shape and shape[0] < 0:
            shape[0] = self.settings.micro_batch
        return shape

    def _dtype(self, name: str) -> torch.dtype:
        return self._variable(name).dtype or torch.float32

    # Running

    def run(
        self,
        arrays: Mapping[str, Array],
        *,
        evaluate: bool = False,
        learning_rate: float | None = None,
    ) -> list[Array]:
        """Run one step; `evaluate` runs a training program without any update.

        Without `learning_rate`, rates are read from the scope.
        """
        rows = self._rows(arrays) if self.settings.dynamic_batch else None
        inputs = [self._input(name, arrays, rows) for name in self.feeds]
        executor = self.executor
        if evaluate and self._update is not None:
            executor = self._evaluating(inputs)
        elif self._update is not None:
            self._refresh_rates(self._update, learning_rate)
        results = executor(*inputs)
        return [self._fetched(result, rows) for result in results]

    def _rows(self, arrays: Mapping[str, Array]) -> int:
        rows = {len(arrays[name]) for name in self.feeds if self._variable(name).shape}
        if len(rows) != 1 or max(rows) > self.settings.micro_batch:
            raise InputMismatch(
                f"feeds have {sorted(rows)} rows; up to {self.settings.micro_batch} fit, the same "
                "number for all",
                fix="feed at most micro_batch_size rows",
            )
        return rows.pop()

    def _input(self, name: str, arrays: Mapping[str, Array], rows: int | None) -> torch.Tensor:
        if name not in arrays:
            raise InputMismatch(
                f"feed {name!r} is missing; fed are {sorted(arrays)}",
                fix="feed every name of feed_list",
            )
        tensor = as_tensor(arrays[name], self._dtype(name))
        count, shape = self.settings.micro_batches, self._shape(name)
        if self.settings.any_batch:
            shape = list(self._variable(name).shape)
        if rows is not None and rows < self.settings.micro_batch and tensor.dim():
            missing = self.settings.micro_batch - rows
            tensor = torch.cat([tensor, tensor.new_zeros([missing, *tensor.shape[1:]])])
        if any(size < 0 for size in shape):
            shape = _resolved(shape, tensor, count)
        wanted = count * torch.Size(shape).numel()
        if tensor.numel() != wanted:
            raise InputMismatch(
                f"feed {name!r} has shape {list(tensor.shape)}, {tensor.numel()} elements; one run "
                f"takes {wanted} = {count} micro-batches of shape {shape}",
                fix="feed batches_per_step · accumulation_factor · replicas micro-batches at once",
            )
        return tensor.reshape([count, *shape])

    def _refresh_rates(self, update: ProgramUpdate, given: float | None) -> None:
        rates = {name for op in self.parts.update for name in op.inputs.get("LearningRate", ())}
        for name, tensor in update.read_tensors().items():
            if given is not None and name in rates:
                tensor.fill_(given)
                continue
            value = self._scope.find(name)
            if value is not None:
                tensor.copy_(value.reshape(tensor.shape))

    def _evaluating(self, inputs: Sequence[torch.Tensor]) -> PoplarExecutor:
        """An executor that runs the training program's forward and changes nothing."""
        if self._evaluator is None:
            options = Options().strict(False).deviceIterations(self.settings.micro_batches)
            options.showCompilationProgressBar(self.settings.shows_progress)
            network = self.network.frozen()
            self._evaluator = inferenceModel(network, options.outputMode(OutputMode.All))
            self._evaluator.compile(*inputs)
            self._evaluator._start_natively(*inputs)
        return self._evaluator

    def _fetched(self, result: torch.Tensor, rows: int | None) -> Array:
        shape = [*self.settings.leading, *result.shape[1:]]
        array = as_array(result.reshape(shape or [1]))
        full = self.settings.micro_batch
        if rows is not None and array.ndim and array.shape[0] == full:
            array = array[:rows]
        return array

    # Weights

    def weights_to_host(self) -> None:
        """Give the scope the weights and the optimizer's state as they are now."""
        if self._update is None:
            logger.warning("weights_to_host: an inference program does not change its weights")
            return
        for name, value in self.current_values():
            self._scope.store(name, value.detach())

    def current_values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights and the optimizer's state that the program changes, by name."""
        update = {} if self._update is None else self._update.state_tensors()
        now = {**dict(self.network.named_state()), **update}
        return ((name, now[name]) for name in self._written if name in now)


def _stages(parts: Parts) -> list[Stage]:
    """The stages that operators were built for, in their order."""
    places = {place for op in parts.forward if (place := place_of(op)) is not None}
    return [Stage(str(stage)).ipu(ipu) for stage, ipu in sorted(dict(places).items())]


class _Steps:
    """Tells every percent once, in order, as a device's compiler does."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._next = progress, 0

    def __call__(self, percent: int) -> None:
        while self._progress is not None and self._next <= percent:
            self._progress(self._next)
            self._next += 1


def _resolved(shape: list[int], tensor: torch.Tensor, count: int) -> list[int]:
    """A shape with unknown dims, completed from the fed one."""
    if tensor.dim() == len(shape) and tensor.shape[0] % count == 0:
        return [tensor.shape[0] // count, *tensor.shape[1:]]
    if tensor.dim() == len(shape) + 1 and tensor.shape[0] == count:
        return list(tensor.shape[1:])
    raise InputMismatch(
        f"a feed declared as {shape} was fed with shape {list(tensor.shape)}, which is not "
        f"{count} micro-batches of it",
        fix="declare the shape of the feed, or feed micro-batches joined on dim 0",
    )


def _advance_powers(parts: Parts, state: dict[str, torch.Tensor]) -> None:
    """Powers of beta may hold a step count instead, as the IPU back-end left them in the scope."""
    for op in parts.update:
        for slot, beta in (("Beta1Pow", "beta1"), ("Beta2Pow", "beta2")):
            for name in op.inputs.get(slot, ()):
                value = float(state[name])
                if not 0.0 < value < 1.0:
                    state[name].fill_(float(op.attributes[beta]) ** (value + 1))


def need_session(session: Session | None, what: str) -> Session:
    """The current session, or an error that says there is none."""
    if session is None:
        raise StateError(f"{what}: no program is compiled", fix="call compile() first")
    return session
