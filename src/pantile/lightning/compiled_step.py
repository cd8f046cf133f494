"""A user's training step, a plain function, as one program: for loops without a Trainer.

    step = compile_step(function, modules, optimizers, options)
    step(batch)        forward, backward, clipping, optimizer.step(): one run

Arguments and results may be nested; numbers and texts among the arguments are part of the kind of
call. The first call runs eagerly if an optimizer has to make its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pantile.capture.tracked import Facts
from pantile.lightning.attributes import Attributes, Fed, Fingerprint
from pantile.lightning.batches import Outline, take_apart
from pantile.lightning.tape import Tape
from pantile.options import Options
from pantile.runtime.step_module import StepProgram
from pantile.runtime.whole_step import FirstStep, OptimizersInStep


@dataclass(frozen=True, eq=False)
class _Note:
    tape: Tape
    values: int
    gradients: list[str]


class _Recorded:
    """One program, and the calls it is for."""

    def __init__(self, owner: CompiledStep, outline: Outline, optimizers: OptimizersInStep) -> None:
        self._owner, self.outline, self.optimizers = owner, outline, optimizers
        self._facts = Facts()
        self._surroundings = optimizers.surroundings()
        self._fingerprint = Fingerprint(Attributes(owner.module, frozenset()), Fed())
        name = getattr(owner.function, "__name__", "step")
        self._program = StepProgram(
            self._function, owner.module, owner.options, name=name, state=optimizers.state()
        )

    def fits(self, outline: Outline, optimizers: OptimizersInStep) -> bool:
        return (
            self._surroundings == optimizers.surroundings()
            and self.outline.same_as(outline)
            and self._fingerprint.holds()
            and self._facts.hold({})
        )

    def _function(
        self, flat: Sequence[torch.Tensor], state: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], _Note]:
        count = len(self.outline.kinds)
        args, kwargs = self.outline.build(flat[:count])
        self._facts.begin({}, None)
        tape = Tape()
        with torch.enable_grad(), self.optimizers.recording(flat[count:], state, self._facts):
            tape.result = tape.keep(self._owner.function(*args, **kwargs))
            left, names = self.optimizers.left_gradients()
        values = tape.close()
        return [*values, *left], _Note(tape, len(values), names)

    def run(self, tensors: Sequence[torch.Tensor], optimizers: OptimizersInStep) -> Any:
        found, note = self._program([*tensors, *optimizers.inputs()])
        optimizers.give_gradients(note.gradients, found[note.values :])
        return note.tape.replay(found[: note.values], {})


class CompiledStep:
    """What `compile_step` returns; call it like the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        options: Options,
    ) -> None:
        self.function, self.options = function, options
        self.module = nn.ModuleList(modules)
        self._optimizers = list(optimizers)
        self._in_step: dict[tuple[bool, ...], OptimizersInStep] = {}
        self.programs: list[_Recorded] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        tensors, outline = take_apart((args, kwargs))
        optimizers = self._present_optimizers()
        for known in self.programs:
            if known.fits(outline, optimizers):
                return known.run(tensors, optimizers)
        made = _Recorded(self, outline, optimizers)
        try:
            result = made.run(tensors, optimizers)
        except FirstStep:
            self._in_step.clear()
            return self.function(*args, **kwargs)
        self.programs.insert(0, made)
        return result

    def _present_optimizers(self) -> OptimizersInStep:
        key = tuple(p.grad is not None for p in self.module.parameters())
        known = self._in_step.get(key)
        if known is None or not known.still_holds():
            known = self._in_step[key] = OptimizersInStep(self._optimizers, self.module)
        return known
