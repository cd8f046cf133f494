"""What an executor tells about itself: times, names, random state, placement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import nn

from pantile.errors import Error, StateError, combined
from pantile.logging import logger
from pantile.lowering.executable import Executable
from pantile.ops.module_text import module_repr
from pantile.options import Options
from pantile.runtime.compile import Compiler
from pantile.runtime.compiled import Compiled
from pantile.runtime.counters import Latency, StepTimes
from pantile.runtime.ir import ir_json
from pantile.runtime.names import tensor_names
from pantile.runtime.optimizer import Update
from pantile.runtime.random import RandomStreams
from pantile.runtime.replica_groups import Choice, ReplicaGroups
from pantile.runtime.stage_reports import StageReports
from pantile.runtime.step import Machine

_CLOCK_HZ = 1.33e9
"""The clock of a Mk2 IPU: `cycleCount` gives measured host time in its ticks."""


class Introspection(StageReports):
    """The part of `PoplarExecutor` that only answers questions."""

    _training: bool
    _strict: bool
    _options: Options
    _user_model: nn.Module
    _model: nn.Module
    _compiled: list[Compiled]
    _compiler: Compiler
    _groups: ReplicaGroups
    _random: RandomStreams
    _times: StepTimes
    _machine: Machine
    _update: Update | None

    @property
    def model(self) -> nn.Module:
        """The wrapped module: the original for training, a shallow copy for inference."""
        return self._user_model if self._training else self._model

    @property
    def options(self) -> Options:
        """The executor's own, frozen options; the output mode is resolved."""
        return self._options

    @property
    def _executable(self) -> Executable | None:
        return self._compiled[0].executable if self._compiled else None

    @property
    def rng_state(self) -> list[int]:
        """The random state: assign it to resume, or to repeat, a run exactly."""
        self._need_compiled()
        return self._random.read() if self._attached else self._random.state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._need_compiled()
        self._random.state = state

    @property
    def per_replica_params(self) -> dict[str, Choice]:
        """Parameters with a value per group of replicas."""
        return self._groups.chosen

    def isCompiled(self) -> bool:
        """True once there is a compiled program."""
        return bool(self._compiled)

    def _need_compiled(self) -> None:
        if not self._compiled:
            raise StateError(
                "Model has not been compiled or has been destroyed.",
                fix="call the model, or compile(...), first",
            )

    def compilationTime(self) -> timedelta:
        """How long the latest compilation took."""
        elapsed = self._compiler.progress.elapsed
        if not self._compiled or elapsed is None:
            raise StateError(
                "there is no compilation time yet: compile the model before asking for it",
                fix="call the model, or compile(...), first",
            )
        if self._strict and not self._options.show_compilation_progress_bar:
            raise StateError(
                "the compilation was not timed: set showCompilationProgressBar(True)",
                fix="set showCompilationProgressBar(True) in the options",
            )
        return elapsed

    def getTensorNames(self) -> list[str]:
        """The names of all tensors of the compiled step."""
        if not self._compiled:
            raise combined(StateError, AssertionError)(
                "the model has not been compiled: it has no tensor names yet",
                fix="call the model, or compile(...), first",
            )
        first = self._compiled[0]
        return tensor_names(first.program, self._update, loss=first.captured.loss)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the latest call kept of the tensor that `anchorTensor` gave this name."""
        return self._machine.anchors.value(short_name)

    def _debugGetPopartIR(self) -> str:
        """The compiled step as JSON: ops with their types, names, inputs, outputs, attributes."""
        self._need_compiled()
        partials = self._options.Precision.partials_type
        first = self._compiled[0]
        pipeline = first.pipeline if self._training else None
        split = None if pipeline is None else pipeline.split
        return ir_json(first.program, self._update, partials, split)

    def cycleCount(self) -> int:
        """The time of the latest call, measured on this host, in ticks of an IPU's clock.

        It is no estimate of what an IPU would take.
        """
        if not self._options.log_cycle_count:
            raise StateError(
                "Cycle count logging is disabled.",
                fix="call options.logCycleCount(True) before wrapping the model",
            )
        if not self._times.rows:
            raise StateError(
                "Please run the model at least once before obtaining cycle count.",
                fix="call the model first",
            )
        return int(self._times.elapsed * _CLOCK_HZ)

    def _log_cycle_count(self) -> None:
        if self._options.log_cycle_count:
            logger.info("Total number of IPU cycles: %d", self.cycleCount())

    def _check_cycle_count(self) -> None:
        """PopTorch's IPU model counts no cycles."""
        options = self._options
        if options.is_strict and options.log_cycle_count and options.uses_ipu_model:
            raise Error(
                "the cycle count is only supported on actual IPU systems, not on the IPU model",
                fix="unset POPTORCH_IPU_MODEL, or remove logCycleCount(True)",
            )

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When each tensor of the latest call went in and out, measured on this host, in seconds.

        Keys are `input`, `input_complete`, `output` and `output_complete`; each holds one list per
        tensor with one entry per micro-batch and replica, or per returned item.
        """
        times = self._times
        if not self._compiled:
            return {name: [[]] for name in times.counters()}
        if self._options.synthetic_data:
            return {name: [[] for _ in lists] for name, lists in times.counters().items()}
        return times.counters()

    def getHostIpuLatency(self) -> Latency:
        """Shortest, longest and average time in seconds to feed a micro-batch."""
        return self._latency("input", "input_complete")

    def getComputeLatency(self) -> Latency:
        """Shortest, longest and average time in seconds to compute a result."""
        return self._latency("input_complete", "output")

    def getIpuHostLatency(self) -> Latency:
        """Shortest, longest and average time in seconds to return a result."""
        return self._latency("output", "output_complete")

    def getLatency(self) -> Latency:
        """Shortest, longest and average time in seconds from an input to its result."""
        return self._latency("input", "output_complete")

    def _latency(self, begin: str, end: str) -> Latency:
        if self._options.synthetic_data:
            return (0.0, 0.0, 0.0)  # nothing goes in or comes out
        return self._times.latency(begin, end)

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self.__dict__["_user_model"], name)
        if isinstance(value, nn.Parameter) and name in vars(self._user_model)["_parameters"]:
            return self._groups.offer(name, value, compiled=bool(self._compiled))
        return value
