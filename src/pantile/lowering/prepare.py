"""A Program as a compiler wants it: tensors in, tensors out, nothing hidden.

half_in_single       float16 products are computed in float32 and rounded
numbers_as_tensors   learning rates, step counts: 0-d tensors
counter_random       dropout and the like: a function of a seed and the element's index
advance_seeds        an update that draws makes its next seeds itself
lift_constants       tensors of the model that are no state: inputs
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pantile.errors import ProgramError
from pantile.passes.advance_seeds import advance_seeds
from pantile.passes.counter_random import counter_random
from pantile.passes.drop_dead_code import drop_dead_code
from pantile.passes.half_in_single import half_in_single
from pantile.passes.lift_constants import lift_constants
from pantile.passes.numbers_as_tensors import numbers_as_tensors
from pantile.program.effects import EFFECTS, is_random
from pantile.program.program import Program
from pantile.program.spec import InputKind, TensorSpec

_LASTING = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A Program whose inputs are all tensors, and the tensors its constants became."""

    program: Program
    constants: tuple[torch.Tensor, ...]
    keeps: bool = False
    """May a run use again what the run before made of constant inputs?"""

    def outline(self) -> Prepared:
        """The same from outside, with nothing computed."""
        return replace(self, program=self.program.outline())

    @property
    def constant_inputs(self) -> list[int]:
        """The places of inputs that stay as they are from run to run, if anything is kept."""
        entries = enumerate(self.program.inputs)
        return [place for place, entry in entries if self.keeps and entry.kind in _LASTING]

    @property
    def seeds(self) -> int:
        """How many seeds a run needs."""
        entries = self.program.inputs_of(InputKind.SEEDS)
        return sum(e.spec.shape[0] for e in entries if isinstance(e.spec, TensorSpec))


def prepare(program: Program, *, keeps: bool = False) -> Prepared:
    """Make a Program compilable; ProgramError if it cannot be.

    With `keeps`, inference that writes nothing packs its weights once for many runs.
    """
    _check_effects(program)
    program = half_in_single(program)
    program = numbers_as_tensors(program)
    program = counter_random(program)
    _check_random(program)
    if program.name == "update":
        program = advance_seeds(program)
    program, constants = lift_constants(program)
    keeps = keeps and program.name == "inference" and not program.writes
    return Prepared(drop_dead_code(program), tuple(constants), keeps)


def _check_random(program: Program) -> None:
    """A draw with no counter-based form would take torch's numbers, whatever `randomSeed` says."""
    for node in program.graph.nodes:
        if is_random(node, program.subgraphs):
            raise ProgramError(
                f"there is no counter-based form of {node.target}",
                fix="nothing: the model runs on the reference engine",
            )


def _check_effects(program: Program) -> None:
    for node in program.graph.nodes:
        name = getattr(getattr(node.target, "_schema", None), "name", None)
        if name in EFFECTS:
            raise ProgramError(
                f"{name} must happen once for every micro-batch, in order",
                fix="nothing: the model runs on the reference engine; remove the call for speed",
            )
