"""The part of `PoplarExecutor` that hands programs to the native engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pantile.enums import OutputMode
from pantile.logging import logger
from pantile.options import Options
from pantile.runtime.compile import Compiler
from pantile.runtime.compiled import Compiled
from pantile.runtime.numerics import Numerics, why_reference
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, OutputCollector
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Reduction
from pantile.runtime.replica_groups import ReplicaGroups
from pantile.runtime.step import Machine
from pantile.runtime.training import OptimizerControl
from pantile.runtime.weights import Weights
from pantile.store.cache import Entry

if TYPE_CHECKING:
    from pantile.runtime.hot_call import HotCall
    from pantile.runtime.native.engine import NativeEngine
    from pantile.runtime.native.runner import Runner


MISS: Any = object()
"""A short way that leads nowhere this time."""


class Engines:
    """Makes the native engine when it is first needed, and compiles ahead where that is wanted."""

    _batching: Batching
    _compiler: Compiler
    _control: OptimizerControl | None
    _groups: ReplicaGroups
    _lock: threading.RLock
    _machine: Machine
    _mode: OutputMode
    _native: NativeEngine | None
    _offered: list[Entry]
    _options: Options
    _random: RandomStreams
    _reduction: tuple[Any, Reduction] | None
    _update: Update | None
    _user_model: nn.Module
    _weights: Weights | None
    _prepared: Callable[..., tuple[Compiled, Sequence[torch.Tensor]]]

    def _build_ahead(self) -> None:
        """Build the device loop, if there is none yet, while a model is captured.

        Capture is one thread of Python; the files of the program, later, want every core.
        """
        if self._options.engine_name == "reference" or why_reference(self._options) is not None:
            return
        from pantile.runtime.native.loop_library import compile_ahead

        compile_ahead()

    def _start_native(self, compiled: Compiled, tensors: Sequence[torch.Tensor]) -> None:
        """A new program: make its engine; compile now if that is wanted before it has run."""
        if self._options.engine_name == "reference":
            chosen = self._options.exists("chosen_engine")
            asked = "the reference engine was asked for"
            self._note_reference(asked if chosen else "strict mode, and no engine was chosen")
            return
        why = why_reference(self._options)
        if why is not None:
            self._note_reference(why)
            logger.warning("the model runs on the reference engine: %s", why)
            return
        engine = self._native = self._native or self._new_engine()
        if self._options.cache_path is not None or engine.in_background:
            self._compile_natively(compiled, tensors, wait=not engine.in_background)

    def _note_reference(self, why: str) -> None:
        facts = {"lowering": "reference", "why": why}
        self._compiler.progress.timeline.note_program("whole step", facts)

    def _new_update(self, optimizer: torch.optim.Optimizer, weights: Weights) -> Update:
        """What updates the weights, with the roundings and checks that are asked for."""
        numerics = Numerics.of(self._options)
        return Update(optimizer, weights, strict=self._options.is_strict, numerics=numerics)

    def nativeDecisions(self) -> list[dict[str, Any]]:
        """For every compiled program: who wrote its code and why, and its threads."""
        return [] if self._native is None else self._native.decisions()

    def _new_engine(self) -> NativeEngine:
        # Imported late: it is not needed by the reference engine.
        from pantile.runtime.native.engine import NativeEngine

        engine = NativeEngine(
            type(self._user_model).__name__,
            self._options,
            self._machine.reader,
            self._random,
            self._compiler.progress,
            self._new_collector(),
        )
        engine.offer(self._offered)
        return engine

    def _compile_natively(
        self, compiled: Compiled, tensors: Sequence[torch.Tensor], *, wait: bool
    ) -> None:
        if self._native is None:
            return
        assert self._weights is not None
        fed = self._machine.reader.prepare(compiled.call.names, tensors)
        reduction = self._current_reduction() if self._update is not None else None
        self._native.compile_ahead(compiled, self._weights, fed, self._update, reduction, wait=wait)

    def _start_natively(self, *args: torch.Tensor) -> None:
        """Run the compiled program natively from its first iteration on.

        For a front-end whose optimizer holds its state already, and whose errors do not point to
        lines of a model: equal runs then give equal bits, the first one included.
        """
        if self._native is not None and not self._native.in_background:
            self._native.note_run(self._prepared(args, {})[0])

    def _hot_call(
        self, compiled: Compiled, tensors: Sequence[torch.Tensor], runner: Runner | None
    ) -> HotCall | None:
        """A short way for the next call, if this one ran natively and nothing else can matter."""
        if (
            runner is None
            or runner.one_by_one
            or not runner.loop.takes_plain_arguments
            or self._weights is None
            or self._weights.resident
            or self._batching.replicas > 1
            or compiled.written_arguments
            or compiled.variant.autocast is not None
            or self._options.log_cycle_count
        ):
            return None
        from pantile.runtime.hot_call import HotCall, Known

        update = self._update if compiled.gradients else None
        known = Known(self._user_model, update, self._control, self._lock)
        hot = HotCall(self._machine, compiled, runner, self._weights, known, tensors)
        return hot if hot.still_holds() else None

    def _new_collector(self) -> OutputCollector:
        return OutputCollector(self._mode, self._options.output_return_period, self._batching)

    def _current_reduction(self) -> Reduction:
        assert self._control is not None
        kind, running = self._control.accumulator_type, self._control.needs_running_mean
        if self._reduction is None or self._reduction[0] != (kind, running):
            groups = self._groups.grouping()
            reduction = Reduction.of(self._options, kind, groups, running=running)
            self._reduction = ((kind, running), reduction)
        return self._reduction[1]

    # Exports

    def _has_run(self, compiled: Compiled) -> bool:
        """Will the next device iteration of this program be native?"""
        return self._native is not None and self._native.has_run(compiled)

    def _executable_entries(self) -> list[Entry]:
        """The machine code of this executor's programs."""
        return [] if self._native is None else self._native.entries()

    def _offer_entries(self, entries: Sequence[Entry]) -> None:
        """Machine code that may be used instead of compiling, if it fits."""
        self._offered.extend(entries)
        if self._native is not None:
            self._native.offer(entries)
