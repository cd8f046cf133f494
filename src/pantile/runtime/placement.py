"""Which stage and IPU each block of a model runs on, and whether hardware could do that.

    blocks as forward met them     a        b        a        c
    IPU of each                    0        1        0        2
    forward stages                 0        1        2        3       a new one at each change

Capture numbers the blocks: 0 is what comes before the first block, n the n-th block that began,
and -1 what ran after a `Block` scope had ended. Placement never changes a number the model
computes; in strict mode it refuses what an IPU system would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import fx

from pantile.capture.recorder import OUTSIDE
from pantile.enums import AutoStage
from pantile.errors import PlacementError
from pantile.options import Options
from pantile.options.limits import device_count_for
from pantile.options.strategy import ExecutionStrategy, PhasedExecution, PipelinedExecution
from pantile.program.program import Program, tag_of

Block = tuple[str, int | None]
"""The id of a block and the IPU its annotation names."""


@dataclass(frozen=True)
class Placement:
    """Where the blocks of a captured model go."""

    stages: tuple[int, ...] = ()
    ipus: tuple[int, ...] = ()
    forward_stages: int = 1

    @property
    def ipus_per_replica(self) -> int:
        """How many IPUs one replica takes."""
        return max((0, *self.ipus)) + 1

    def stage(self, block: int) -> int:
        """The stage of a block by its number; what comes before the first one is stage 0."""
        return self.stages[block - 1] if block > 0 else 0


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
    walked = [0, *(ipus[number - 1] for number in activations)]
    changes = sum(a != b for a, b in pairwise(walked))
    if strict and strategy.is_pipelined:
        _check_order(blocks, stages, activations)
    return Placement(stages, ipus, 1 + changes)


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
    """The program with stages instead of block numbers in the tags of its nodes."""
    numbers = {tag_of(node).stage for node in program.graph.nodes}
    if strict and OUTSIDE in numbers:
        raise _no_active_block(program)
    if numbers <= {0} and not placement.stages:
        return program

    def change(graph: fx.Graph) -> None:
        latest = 0
        for node in graph.nodes:
            tag = tag_of(node)
            if tag.stage != OUTSIDE:
                latest = placement.stage(tag.stage)
            if "tag" in node.meta:
                node.meta["tag"] = replace(tag, stage=latest)

    return program.edit(change)


def _no_active_block(program: Program) -> PlacementError:
    node = next(node for node in program.graph.nodes if tag_of(node).stage == OUTSIDE)
    return PlacementError(
        f"No active Block: {node.target} runs after a Block scope has ended and outside any other",
        fix="put it inside a poptorch.Block scope, the loss included, or use BeginBlock",
        location=tag_of(node).source,
    )
