"""Which stage and IPU each block of a model runs on, and whether hardware could do that.

    turns of blocks in forward     a        b        a        c
    IPU of each                    0        1        0        2
    stages                         0        1        2        3       a new one at each change

A stage of the schedule is a stretch of forward on one IPU (and in one phase). Capture numbers the
turns: 0 is what comes before the first block, n the n-th block that began, -1 what ran after a
`Block` scope had ended. Placement never changes a number the model computes; in strict mode it
refuses what an IPU system would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from torch import fx

from pantile.capture.recorder import OUTSIDE, UNKNOWN
from pantile.enums import AutoStage
from pantile.errors import PlacementError
from pantile.options import Options
from pantile.options.limits import device_count_for
from pantile.options.strategy import (
    ExecutionStrategy,
    ParallelPhasedExecution,
    PhasedExecution,
    PipelinedExecution,
)
from pantile.passes.stage_places import place_of, settle, stage_at
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import NodeTag

Block = tuple[str, int | None]
"""The id of a block and the IPU its annotation names."""


@dataclass(frozen=True)
class Turn:
    """A stretch of forward in one block: the block's id, and the stage it is part of."""

    block: str
    stage: int


@dataclass(frozen=True)
class Placement:
    """Where the blocks of a captured model go.

    `stages` and `ipus` say for each block which stage of the strategy it is in, and on which IPU.
    `devices` has the IPU of each stage of the schedule, `phases` groups those stages by phase.
    """

    stages: tuple[int, ...] = ()
    ipus: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    devices: tuple[int, ...] = (0,)
    phases: tuple[tuple[int, ...], ...] = ((0,),)

    @property
    def forward_stages(self) -> int:
        """The number of stages of the schedule, without those that go back."""
        return len(self.devices)

    @property
    def ipus_per_replica(self) -> int:
        """How many IPUs one replica takes."""
        return max((0, *self.ipus)) + 1

    def turn(self, number: int) -> Turn:
        """The turn of that number; what comes before the first one is stage 0."""
        return self.turns[number - 1] if number > 0 else Turn("", 0)


def place_blocks(
    blocks: Sequence[Block],
    activations: Sequence[int],
    strategy: ExecutionStrategy,
    *,
    strict: bool,
) -> Placement:
    """Place `blocks`; `activations` are their numbers in the order in which they began."""
    stages = tuple(
        _stage(block, index, strategy, strict=strict) for index, block in enumerate(blocks)
    )
    ipus = tuple(_ipu(block, stage, strategy) for block, stage in zip(blocks, stages, strict=True))
    if strict and strategy.is_pipelined:
        _check_order(blocks, stages, activations)
    if strict and isinstance(strategy, ParallelPhasedExecution):
        _check_alternating(blocks, stages, ipus, strategy)
    walked = [(0, 0)]
    turns = []
    for number in activations:
        place = phase_of(strategy, stages[number - 1]), ipus[number - 1]
        if place != walked[-1]:
            walked.append(place)
        turns.append(Turn(blocks[number - 1][0], len(walked) - 1))
    numbered = groupby(enumerate(walked), key=lambda pair: pair[1][0])
    phases = tuple(tuple(stage for stage, _ in group) for _, group in numbered)
    return Placement(stages, ipus, tuple(turns), tuple(ipu for _, ipu in walked), phases)


def _stage(block: Block, index: int, strategy: ExecutionStrategy, *, strict: bool) -> int:
    block_id, ipu_id = block
    if not isinstance(strategy, PipelinedExecution):
        return strategy.stages.index(strategy.stage(block_id))
    unnamed = strategy.auto_stage is AutoStage.SameAsIpu and ipu_id is None
    if unnamed and not strict:
        return index + 1
    return strategy.stage_of(block_id, ipu_id, blocks_before=index)


def _ipu(block: Block, stage: int, strategy: ExecutionStrategy) -> int:
    """The stage's own IPU, else the block's, else the one of the stage's number."""
    block_id, ipu_id = block
    listed = strategy.stage(block_id).ipu_id if strategy.stages else None
    if isinstance(strategy, PhasedExecution):
        stage = _ipu_in_phase(strategy, stage)
    return next(ipu for ipu in (listed, ipu_id, stage) if ipu is not None)


def _ipu_in_phase(strategy: PhasedExecution, stage: int) -> int:
    """Serial phases share their IPUs; parallel ones alternate between even and odd ones."""
    for number, phase in enumerate(strategy.phases):
        if stage < len(phase.stages):
            return stage if strategy.IS_SERIAL else 2 * stage + number % 2
        stage -= len(phase.stages)
    return stage


def phase_of(strategy: ExecutionStrategy, stage: int) -> int:
    """The phase a stage of the strategy is in; other strategies have none."""
    if isinstance(strategy, PhasedExecution):
        for number, phase in enumerate(strategy.phases):
            if stage < len(phase.stages):
                return number
            stage -= len(phase.stages)
    return 0


def _check_alternating(
    blocks: Sequence[Block],
    stages: Sequence[int],
    ipus: Sequence[int],
    strategy: ParallelPhasedExecution,
) -> None:
    for (block, _), stage, ipu in zip(blocks, stages, ipus, strict=True):
        phase = phase_of(strategy, stage)
        if phase % 2 != ipu % 2:
            raise PlacementError(
                f"block {block!r} of phase {phase} is on IPU {ipu}; parallel phases alternate "
                "between even and odd IPUs",
                fix=f"put the stages of phase {phase} on {'odd' if phase % 2 else 'even'} IPUs",
            )


def _check_order(
    blocks: Sequence[Block], stages: Sequence[int], activations: Sequence[int]
) -> None:
    for before, after in pairwise(activations):
        if stages[after - 1] < stages[before - 1]:
            raise PlacementError(
                f"block {blocks[after - 1][0]!r} of stage {stages[after - 1]} runs after block "
                f"{blocks[before - 1][0]!r} of stage {stages[before - 1]}; the stages of a "
                "pipeline must not decrease",
                fix="list the stages in the order in which forward runs their blocks",
            )


def check_placement(placement: Placement, options: Options, *, training: bool) -> None:
    """Refuse, in strict mode, what a system of IPUs could not run."""
    device_count_for(options, placement.ipus_per_replica)
    if not options.is_strict or not options.execution_strategy.is_pipelined:
        return
    forward = placement.forward_stages
    if training:
        name, given = "Training.gradientAccumulation", options.Training.gradient_accumulation
        stages = 2 * forward - 1
        why = f": {forward} forward stages and {forward - 1} additional backward stages"
    else:
        name, given = "deviceIterations", options.device_iterations
        stages, why = forward, ""
    if given < stages:
        raise PlacementError(
            f"poptorch.Options().{name} must be greater than or equal to the number of pipeline "
            f"stages ({stages}) when using PipelinedExecution, and is {given}{why}",
            fix=f"set options.{name}({stages}) or more, use ShardedExecution, or leave strict mode",
        )


def tag_stages(program: Program, placement: Placement, *, strict: bool) -> Program:
    """The program with stages and blocks instead of turns in the tags of its nodes."""
    numbers = {tag_of(node).stage for node in program.graph.nodes}
    if strict and OUTSIDE in numbers:
        raise _no_active_block(program)
    if numbers <= {0} and not placement.stages:
        return program
    return program.edit(lambda graph: _tag(graph, placement))


def _tag(graph: fx.Graph, placement: Placement) -> None:
    """Note [Stages of what no block made]

    What runs after a `Block` scope, and the seed of the gradients, belong to the stage before them.
    A backward node whose forward op is unknown runs as early as its operands allow.
    """
    stages = placement.forward_stages
    tagged = [node for node in graph.nodes if "tag" in node.meta and node.target is not WRITE]
    turns, latest = {}, Turn("", 0)
    for node in tagged:
        number = tag_of(node).stage
        if number == UNKNOWN:
            turns[node] = Turn("", stages - 1)
        elif number == OUTSIDE:
            turns[node] = latest
        else:
            turns[node] = latest = placement.turn(number)
    wanted = {n: place_of(tag_of(n).phase, turns[n].stage, stages) for n in tagged}
    places = settle(graph, wanted)
    for node in tagged:
        stage = stage_at(places[node], stages)
        block = turns[node].block if stage == turns[node].stage else ""
        node.meta["tag"] = replace(tag_of(node), stage=stage, block=block)
    for node in graph.find_nodes(op="call_function", target=WRITE):
        source = node.args[1]
        node.meta["tag"] = tag_of(source) if isinstance(source, fx.Node) else NodeTag()


def _no_active_block(program: Program) -> PlacementError:
    node = next(node for node in program.graph.nodes if tag_of(node).stage == OUTSIDE)
    return PlacementError(
        f"No active Block: {node.target} runs after a Block scope has ended and outside any other",
        fix="put it inside a poptorch.Block scope, the loss included, or use BeginBlock",
        location=tag_of(node).source,
    )
