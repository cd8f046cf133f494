"""The native engine of an executor: decides what runs natively, compiles it, keeps it.

    first device iteration of a program       reference engine: it makes the optimizer's state,
                                              and explains errors with the user's line
    then                                      native, compiled before the second iteration
                                              (`tiered`: when the compilation in the background
                                              is done, at the next step)
    a program that cannot be compiled         reference engine, with one message saying why

Which iteration runs where never depends on what the cache holds, so neither do the bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pantile.errors import CompilerFailed, CompilerMissing, ProgramError
from pantile.logging import logger
from pantile.lowering.native import NativeStep, StepPrograms, compile_step
from pantile.options import Options
from pantile.program.garbage import uncollected
from pantile.program.spec import InputKind
from pantile.runtime.compiled import Compiled
from pantile.runtime.inputs import InputReader
from pantile.runtime.native.constants import can_be_watched
from pantile.runtime.native.lane_library import LANE
from pantile.runtime.native.leftovers import give_back
from pantile.runtime.native.plan import ArgumentSpec, Schedule, Threads
from pantile.runtime.native.runner import Binding, Numbers, Runner
from pantile.runtime.native.samples import samples_of
from pantile.runtime.native.step_programs import TrainingKind
from pantile.runtime.optimizer import Current, Update, UpdateVariant
from pantile.runtime.outputs import OutputCollector
from pantile.runtime.progress import CompileProgress
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Reduction
from pantile.runtime.weights import Weights
from pantile.store.cache import Entry, ExecutableCache, default_cache

_Kept = tuple[Compiled, UpdateVariant | None]


@dataclass(frozen=True, eq=False)
class _Bound:
    """A runner, and what it is bound to."""

    runner: Runner
    arrangement: int
    current: Current | None
    reduction: Reduction | None


class NativeEngine:
    """The native programs of one executor."""

    def __init__(
        self,
        name: str,
        options: Options,
        reader: InputReader,
        random: RandomStreams,
        progress: CompileProgress,
        collector: OutputCollector,
    ) -> None:
        self.name = name
        self._options = options
        self._reader = reader
        self._random = random
        self._progress = progress
        self._threads = torch.get_num_threads()
        self._schedule = Schedule.of(reader.slicing, collector.wants)
        shape = self._schedule.parts.shape
        returns = [collector.returns(*at) for at in np.ndindex(*shape[:2])]
        self._returned = np.repeat(returns, shape[2]).reshape(shape)
        self.in_background = options.engine_name == "tiered"
        self._refused: set[int] = set()
        self._seen: dict[int, Compiled] = {}
        self._steps: dict[_Kept, NativeStep | None] = {}
        self._pending: dict[_Kept, Future[NativeStep | None]] = {}
        self._bound: dict[int, _Bound] = {}
        self._offered: dict[str, Entry] = {}
        LANE.load()

    # What the executor asks

    def note_run(self, compiled: Compiled) -> None:
        """A device iteration of this program was run."""
        self._seen[id(compiled)] = compiled

    def has_run(self, compiled: Compiled) -> bool:
        """Was a device iteration of this program run?"""
        return id(compiled) in self._seen

    def ready(
        self,
        compiled: Compiled,
        weights: Weights,
        tensors: Sequence[torch.Tensor],
        update: Update | None = None,
        reduction: Reduction | None = None,
    ) -> Runner | None:
        """What runs the next device iterations; None: the reference engine runs the next one."""
        number = id(compiled)
        if number in self._refused or number not in self._seen:
            return None
        current, kind = None, None
        if update is not None and reduction is not None and compiled.gradients:
            if update.has_hooks:
                self._refuse(compiled, "step hooks of the optimizer are run by Python")
                return None
            kind = TrainingKind(compiled, reduction)
            current = update.settle(kind.update_kind, kind.gradients)
            if current.variant.creates_state:
                return None
        bound = self._bound.get(number)
        if (
            bound is not None
            and bound.arrangement == weights.arrangement
            and bound.current is current
            and bound.reduction is reduction
        ):
            return bound.runner
        return self._bind(compiled, weights, tensors, update, current, kind)

    def compile_ahead(
        self,
        compiled: Compiled,
        weights: Weights,
        tensors: Sequence[torch.Tensor],
        update: Update | None,
        reduction: Reduction | None,
        *,
        wait: bool,
    ) -> None:
        """Compile what later iterations will need, before the first one."""
        if id(compiled) in self._refused:
            return
        variant, kind = None, None
        if update is not None and reduction is not None and compiled.gradients:
            kind = TrainingKind(compiled, reduction)
            with uncollected():
                variant = update.foresee(kind.update_kind, kind.gradients)
        self._step(compiled, variant, kind, weights, tensors, wait=wait)

    def forget(self) -> None:
        """Drop everything that was compiled."""
        for table in (self._seen, self._steps, self._pending, self._bound):
            table.clear()
        self._refused.clear()

    # Exports

    def entries(self) -> list[Entry]:
        """The executables in use."""
        return [step.entry for step in self._steps.values() if step is not None]

    def decisions(self) -> list[dict[str, Any]]:
        """What was decided when the programs in use were compiled."""
        steps = [step for step in self._steps.values() if step is not None]
        return [facts for step in steps for facts in step.decisions().values()]

    def offer(self, entries: Sequence[Entry]) -> None:
        """Executables that may be used instead of compiling, if they fit."""
        self._offered.update({entry.key: entry for entry in entries})

    # Compiling

    def _refuse(self, compiled: Compiled, why: str) -> None:
        """Run this program on the reference engine from now on."""
        if id(compiled) not in self._refused:
            self._refused.add(id(compiled))
            self._seen[id(compiled)] = compiled
            facts = {"lowering": "reference", "why": why}
            self._progress.timeline.note_program("whole step", facts)
            logger.warning("the model runs on the reference engine: %s", why)

    def _bind(
        self,
        compiled: Compiled,
        weights: Weights,
        tensors: Sequence[torch.Tensor],
        update: Update | None,
        current: Current | None,
        kind: TrainingKind | None,
    ) -> Runner | None:
        if compiled.written_arguments and self._reader.slicing.group_size > 1:
            self._refuse(compiled, "it writes to arguments that replicas share")
            return None
        variant = None if current is None else current.variant
        wait = not self.in_background
        step = self._step(compiled, variant, kind, weights, tensors, wait=wait)
        if step is None:
            return None
        numbers = None
        if update is not None and current is not None:
            numbers = Numbers(update, current)
        slicing = self._reader.slicing
        binding = Binding(compiled, weights, slicing.replicas, kind, current, numbers)
        names = compiled.call.names
        arguments = [
            ArgumentSpec(name, tuple(t.shape), t.dtype, slicing.parts)
            for name, t in zip(names, tensors, strict=True)
        ]
        threads = self._shared_threads(step)
        try:
            runner = Runner(
                step,
                binding,
                self._schedule,
                arguments,
                threads,
                self._random,
                numbers,
                self._returned,
                one_by_one=variant is not None and variant.guards.read_state(variant.program),
            )
        except (ProgramError, CompilerMissing) as error:
            self._refuse(compiled, str(error))
            return None
        if id(compiled) not in self._bound:
            give_back()
        reduction = None if kind is None else kind.reduction
        self._bound[id(compiled)] = _Bound(runner, weights.arrangement, current, reduction)
        return runner

    def _shared_threads(self, step: NativeStep) -> Threads:
        """Replicas first: they share nothing but the update."""
        replicas = self._reader.slicing.replicas
        update = 0 if step.update is None else step.threads("update")
        if replicas == 1:
            return Threads(1, step.threads("body"), update)
        workers = min(replicas, self._threads)
        return Threads(workers, max(1, self._threads // workers), update)

    def _step(
        self,
        compiled: Compiled,
        variant: UpdateVariant | None,
        kind: TrainingKind | None,
        weights: Weights,
        tensors: Sequence[torch.Tensor],
        *,
        wait: bool,
    ) -> NativeStep | None:
        """The compiled step; None if there is none, or not yet."""
        kept = (compiled, variant)
        if kept not in self._steps:
            pending = self._pending.get(kept)
            if pending is None:
                job = _Job(self, compiled, variant, kind, weights, tensors)
                if wait:
                    self._steps[kept] = job.run()
                    return self._steps[kept]
                self._pending[kept] = job.start()
                return None
            if not pending.done() and not wait:
                return None
            self._steps[kept] = self._pending.pop(kept).result()
        return self._steps[kept]

    def cache(self) -> ExecutableCache:
        """Where executables are kept."""
        named = self._options.cache_path
        return default_cache() if named is None else ExecutableCache(Path(named), limit_bytes=None)


class _Job:
    """One compilation."""

    def __init__(
        self,
        engine: NativeEngine,
        compiled: Compiled,
        variant: UpdateVariant | None,
        kind: TrainingKind | None,
        weights: Weights,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        self._engine = engine
        self._compiled = compiled
        self._variant, self._kind = variant, kind
        # If nobody can tell that a weight was changed, it would be packed apart in vain.
        self._keeps = engine._options.keep_packed_weights and all(
            can_be_watched(tensor) for tensor in _row(weights).values()
        )
        arguments = engine._reader.micro_batch(tensors, 0, 0, 0)
        named = zip(compiled.call.names, arguments, strict=True)
        self._known = {
            **{(InputKind.PARAMETER, n): t for n, t in _row(weights).items()},
            **{(InputKind.BUFFER, n): t for n, t in _row(weights).items()},
            **{(InputKind.ARGUMENT, n): t for n, t in named},
        }

    def start(self) -> Future[NativeStep | None]:
        """Run in the background."""
        future: Future[NativeStep | None] = Future()

        def work() -> None:
            try:
                future.set_result(self.run(shown=False))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="pantile-compile", daemon=True).start()
        return future

    def run(self, *, shown: bool = True) -> NativeStep | None:
        """Compile, or take from the cache; None if it cannot be compiled."""
        engine = self._engine
        # In the background the user's program runs meanwhile, and makes garbage.
        collects = uncollected() if shown else nullcontext()
        try:
            with collects, engine._progress.compiling("native code", shown=shown, more=True):
                return self._compiled_step()
        except (ProgramError, CompilerFailed, CompilerMissing) as error:
            engine._refuse(self._compiled, str(error))
            return None

    def _compiled_step(self) -> NativeStep:
        engine = self._engine
        engine._progress.phase("passes", 5)
        if self._kind is None or self._variant is None:
            programs = StepPrograms.of(self._compiled.program, None, keeps=self._keeps)
        else:
            programs = self._kind.programs(self._variant)
        key = programs.key(engine._threads)
        entry = engine._offered.get(key)
        if entry is None:
            entry, found = engine.cache().get_or_build(key, lambda: self._built(programs, key))
            logger.debug("executable %s: %s", key[:12], "found" if found else "compiled")
        engine._progress.phase("link", 95)
        step = NativeStep.load(programs, entry)
        for part, facts in step.decisions().items():
            engine._progress.timeline.note_program(part, facts)
        return step

    def _built(self, programs: StepPrograms, key: str) -> Entry:
        engine = self._engine
        names = {"inference": "inference", "gradients": "training", "fused": "training"}
        what = names.get(programs.body.program.name, programs.body.program.name)
        return compile_step(
            programs,
            key,
            f"{engine.name} {what}",
            engine._threads,
            lambda part: samples_of(programs, part, self._known),
            engine._progress.named_phase,
        )


def _row(weights: Weights) -> dict[str, torch.Tensor]:
    entries = weights.state.entries
    return {e.name: t for e, t in zip(entries, weights.row(0), strict=True)}
