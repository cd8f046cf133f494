"""Manual optimisation: the whole `training_step`, with every backward and every optimizer's step.

self.optimizers(), toggle_optimizer, zero_grad, manual_backward, clip_gradients, opt.step()
                                      recorded as they are called; see runtime/whole_step.py
the Trainer's step counters           events: they count at each run
scheduler.step()                      an event: it takes place after the run
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from pantile.errors import CaptureError
from pantile.lightning.modes import is_stand_in, replaced_by_objects
from pantile.lightning.programs import Inside, Kind, Programs
from pantile.lightning.scaler_in_step import ScalerInStep
from pantile.lightning.tape import Tape
from pantile.logging import logger
from pantile.runtime.step_module import StepProgram
from pantile.runtime.whole_step import FirstStep, OptimizersInStep


class ManualOptimization:
    """The part of the strategy for steps that optimise by themselves."""

    lightning_module: Any
    optimizers: Any
    _programs: Programs | None
    _in_step: dict[tuple[bool, ...], OptimizersInStep]
    _eager: set[str]

    def _manual_step(self, args: Sequence[Any]) -> Any:
        assert self._programs is not None
        for name in replaced_by_objects(self):
            logger.warning("training_step runs on the CPU: %s is no function of Python", name)
            self._eager.add("training_step")
            return super().training_step(*args)  # type: ignore[misc]
        step = ManualStep(self, self._optimizers_in_step())
        try:
            return step.run(self._programs, args)
        except FirstStep:  # an optimizer makes its state
            self._in_step.clear()
            return super().training_step(*args)  # type: ignore[misc]

    def _optimizers_in_step(self) -> OptimizersInStep:
        module = self.lightning_module
        key = tuple(p.grad is not None for p in module.parameters())
        known = self._in_step.get(key)
        if known is None or not known.still_holds():
            real = [o for o in self.optimizers if not is_stand_in(o)]
            known = self._in_step[key] = OptimizersInStep(real, module)
        return known


class ManualStep:
    """One call of a training_step that optimises by itself."""

    def __init__(self, strategy: Any, optimizers: OptimizersInStep) -> None:
        self._strategy, self._optimizers = strategy, optimizers
        scaler = getattr(strategy.precision_plugin, "scaler", None)
        scales = scaler is not None and scaler.is_enabled()
        self._scaler = ScalerInStep(scaler, optimizers) if scales else None
        if strategy.training_opts.device_iterations > 1:
            raise CaptureError(
                "device_iterations > 1 with manual optimisation",
                fix="use device_iterations=1",
            )

    def run(self, programs: Programs, args: Sequence[Any]) -> Any:
        """Run the step; what it returned."""
        scaler = self._scaler
        rules = () if scaler is None else scaler.surroundings()
        surroundings = (self._strategy._surroundings(), self._optimizers.surroundings(), rules)
        kind = Kind("manual", 1, self._context, self._finish, self._make, surroundings)
        extras = [*([] if scaler is None else scaler.inputs()), *self._optimizers.inputs()]
        run = programs.run("training_step", kind, args, extras)
        names, gradients = run.note.more, run.more
        if scaler is not None:
            scaler.give_back(gradients[len(names) :])
        self._optimizers.give_gradients(names, gradients[: len(names)])
        return run.replay()

    @contextmanager
    def _context(self, inside: Inside) -> Iterator[None]:
        plugin, extras = self._strategy.precision_plugin, list(inside.extras)
        scaled: AbstractContextManager[Any] = nullcontext()
        if self._scaler is not None:
            scaled = self._scaler.recording(plugin, extras.pop(0))
        recording = self._optimizers.recording(extras, inside.state, inside.facts)
        events, context = self._events(inside.tape), plugin.train_step_context()
        with torch.enable_grad(), scaled, recording, events, context:
            yield

    @contextmanager
    def _events(self, tape: Tape) -> Iterator[None]:
        """Counters and schedulers are the host's: they take place at each run."""
        strategy = self._strategy
        with ExitStack() as undo:
            for optimizer in strategy._lightning_optimizers:
                for name in ("_on_before_step", "_on_after_step"):
                    real = getattr(optimizer, name)
                    undo.callback(setattr, optimizer, name, real)
                    setattr(optimizer, name, _event(tape, _count(strategy, real, name), name))
            for config in strategy.lr_scheduler_configs:
                table = vars(config.scheduler)
                undo.callback(_restore_step, table, table.get("step"))
                table["step"] = _event(tape, config.scheduler.step, "scheduler")
            yield

    def _finish(self, result: Any, inside: Inside) -> tuple[list[torch.Tensor], list[str]]:
        gradients, names = self._optimizers.left_gradients()
        return [*gradients, *([] if self._scaler is None else self._scaler.results())], names

    def _make(self, function: Any, parts: int, name: str) -> StepProgram:
        strategy = self._strategy
        options = strategy._program_options(training=True, parts=1)
        state = self._optimizers.state()
        return StepProgram(function, strategy.lightning_module, options, name=name, state=state)


def _event(tape: Tape, act: Callable[..., Any], name: str) -> Callable[..., None]:
    def note(*args: Any, **kwargs: Any) -> None:
        tape.add(act, args, kwargs)
        tape.steps += name == "_on_after_step"

    return note


def _count(strategy: Any, real: Callable[[], None], name: str) -> Callable[[], None]:
    """The Trainer's own counting, and ours."""
    if name == "_on_before_step":
        return real

    @functools.wraps(real)
    def count() -> None:
        real()
        strategy.optimizer_updates += 1
        for optimizer in strategy.optimizers:
            optimizer._opt_called = True  # a scheduler would warn

    return count


def _restore_step(table: dict[str, Any], step: Any) -> None:
    if step is None:
        table.pop("step", None)
    else:
        table["step"] = step
