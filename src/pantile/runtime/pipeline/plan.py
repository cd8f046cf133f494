"""What a placed program needs to run in stages.

    placement, strategy  ──►  StageGraph  ──►  Schedule of any number of micro-batches
    program, placement   ──►  pieces      ──►  an executable each

Micro-batches overlap if nothing stands against it. What does: state that one stage reads and
another writes, and ops whose order the user can see. Then the pieces run one micro-batch after the
other, in the order of the program, and `Plan.ordered` says why. The schedule is still the one that
IPUs would follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx

from pantile.errors import OptionError
from pantile.lowering.reference import ReferenceExecutable
from pantile.options import Options
from pantile.options.strategy import (
    ExecutionStrategy,
    PhasedExecution,
    SerialPhasedExecution,
    ShardedExecution,
)
from pantile.passes.split_stages import Key, Split, split_stages
from pantile.program.effects import is_noticed
from pantile.program.program import Program
from pantile.runtime.pipeline.draws import Draws
from pantile.runtime.placement import Placement
from pantile.schedule import Schedule, StageGraph, phased, pipelined, sharded, validate

_RECOMPUTATION_TYPES = {"none": 0, "standard": 1, "normonly": 2, "pipeline": 3, "recomputeall": 4}
"""Which activations are recomputed is the same for all but none: see `recomputed_stages`."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The pieces of a program, and how they are scheduled."""

    split: Split
    placement: Placement
    strategy: ExecutionStrategy
    training: bool
    recomputed: frozenset[int]
    ordered: str
    _schedules: dict[int, Schedule] = field(default_factory=dict)

    @cached_property
    def graph(self) -> StageGraph:
        """The stages: a chain, or for phases what reads what."""
        devices = self.placement.devices
        if not isinstance(self.strategy, PhasedExecution):
            return StageGraph.chain(devices)
        return StageGraph(devices, tuple(self.split.after(s) for s in range(len(devices))))

    def schedule(self, micro_batches: int) -> Schedule:
        """The schedule of so many micro-batches; a valid one."""
        if micro_batches not in self._schedules:
            schedule = self._generate(micro_batches)
            validate(schedule)
            self._schedules[micro_batches] = schedule
        return self._schedules[micro_batches]

    def _generate(self, micro_batches: int) -> Schedule:
        what: dict[str, Any] = {"training": self.training, "recomputed": self.recomputed}
        if isinstance(self.strategy, PhasedExecution):
            serial = isinstance(self.strategy, SerialPhasedExecution)
            phases = self.placement.phases
            return phased(self.graph, phases, micro_batches, serial=serial, **what)
        generate = sharded if isinstance(self.strategy, ShardedExecution) else pipelined
        return generate(self.graph, micro_batches, **what)

    @cached_property
    def draws(self) -> Draws:
        """The random numbers of the program."""
        return Draws(self.split.program)

    @cached_property
    def executables(self) -> Mapping[Key, ReferenceExecutable]:
        """The pieces, ready to run."""
        return {
            key: ReferenceExecutable(piece.program, instead=self.draws.replacements)
            for key, piece in self.split.pieces.items()
        }

    @cached_property
    def senders(self) -> Mapping[Key, frozenset[Key]]:
        """For each piece, those whose edges it reads."""
        split = self.split
        return {key: frozenset(split.senders(piece)) for key, piece in split.pieces.items()}


def plan_stages(
    program: Program, placement: Placement, options: Options, *, training: bool
) -> Plan | None:
    """How a placed program runs in stages; None if it runs as a whole."""
    if placement.forward_stages == 1:
        return None
    plan = make_plan(program, placement, options, training=training)
    seen = _seen_by_the_user(program)
    if plan.ordered and not plan.split.in_order([*plan.draws.nodes, *seen]):
        return None  # a gradient taken inside forward has them out of order
    return plan


def make_plan(program: Program, placement: Placement, options: Options, *, training: bool) -> Plan:
    """The stages of a program, whether it can run in them or not."""
    stages = placement.forward_stages
    recomputed = recomputed_stages(program, options, stages) if training else frozenset()
    split = split_stages(program, stages, training=training, recomputed=recomputed)
    done_again = frozenset(s for kind, s in split.pieces if kind.value == "R")
    draws, seen = Draws(program), _seen_by_the_user(program)
    ordered = split.ordered or draws.unpredictable
    if seen:
        ordered = ordered or f"{seen[0].target} happens in the order of the micro-batches"
    return Plan(split, placement, options.execution_strategy, training, done_again, ordered)


def recomputed_stages(program: Program, options: Options, stages: int) -> frozenset[int]:
    """The stages whose activations are computed again; never the last, which goes back at once.

    `_Popart.set("autoRecomputation", ...)` decides; if it is not set, a model that marks
    checkpoints asks for recomputation, and any other keeps its activations.
    """
    setting = options._Popart.options.get("autoRecomputation")
    if setting is None:
        marked = any(
            getattr(node.meta.get("tag"), "checkpoint", False) for node in program.graph.nodes
        )
        return frozenset(range(stages - 1)) if marked else frozenset()
    return frozenset(range(stages - 1)) if _recomputation_type(setting) else frozenset()


def _recomputation_type(setting: Any) -> int:
    """The number of a RecomputationType, given as a number, an enum or its name."""
    number = getattr(setting, "value", setting)
    if isinstance(number, str):
        number = _RECOMPUTATION_TYPES.get(number.rpartition(".")[2].lower())
    if not isinstance(number, int) or not 0 <= number < len(_RECOMPUTATION_TYPES):
        raise OptionError(
            f'_Popart.set("autoRecomputation", {setting!r}): there is no such RecomputationType',
            fix="use a number from 0 (none) to 4 (all), or a name: "
            + ", ".join(_RECOMPUTATION_TYPES),
        )
    return number


def _seen_by_the_user(program: Program) -> list[fx.Node]:
    return [node for node in program.graph.nodes if is_noticed(node, program.subgraphs)]
