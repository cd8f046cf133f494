"""Manual optimisation: the whole `training_step`, with every backward and every optimizer's step.

self.optimizers(), toggle_optimizer, zero_grad, manual_backward, clip_gradients, opt.step()
                                      recorded as they are called; see runtime/whole_step.py
the Trainer's step counters           events: they count at each run
scheduler.step()                      an event: it takes place after the run
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pantile.errors import CaptureError
from pantile.lightning.programs import Inside, Kind, Programs
from pantile.lightning.tape import Tape
from pantile.runtime.step_module import StepProgram
from pantile.runtime.whole_step import OptimizersInStep


class ManualStep:
    """One call of a training_step that optimises by itself."""

    def __init__(self, strategy: Any, optimizers: OptimizersInStep) -> None:
        self._strategy, self._optimizers = strategy, optimizers
        if getattr(strategy.precision_plugin, "scaler", None) is not None:
            raise CaptureError(
                "precision='16-mixed' with manual optimisation decides on the host whether an "
                "optimizer steps",
                fix="use precision='bf16-mixed' or '32-true'",
            )
        if strategy.training_opts.device_iterations > 1:
            raise CaptureError(
                "device_iterations > 1 with manual optimisation",
                fix="use device_iterations=1",
            )

    def run(self, programs: Programs, args: Sequence[Any]) -> Any:
        """Run the step; what it returned."""
        surroundings = (self._strategy._surroundings(), self._optimizers.surroundings())
        kind = Kind("manual", 1, self._context, self._finish, self._make, surroundings)
        run = programs.run("training_step", kind, args, self._optimizers.inputs())
        self._optimizers.give_gradients(run.note.more, run.more)
        return run.replay()

    @contextmanager
    def _context(self, inside: Inside) -> Iterator[None]:
        plugin = self._strategy.precision_plugin
        recording = self._optimizers.recording(inside.extras, inside.state, inside.facts)
        events, context = self._events(inside.tape), plugin.train_step_context()
        with torch.enable_grad(), recording, events, context:
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
        return self._optimizers.left_gradients()

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
