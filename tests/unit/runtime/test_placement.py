"""Blocks, stages and IPUs: tags of the program, and what strict mode refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import options, same_state, sgd, strict, twin
from torch import nn

import poptorch
from pantile.program.program import tag_of
from pantile.runtime.placement import place_blocks
from poptorch import (
    AutoStage,
    BeginBlock,
    Block,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)


class Chain(nn.Module):
    """Layers in blocks `b0`, `b1`, … on the given IPUs, with its loss in the last block."""

    def __init__(self, *ipus: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            BeginBlock(nn.Linear(3, 3), f"b{i}", ipu_id=ipu) for i, ipu in enumerate(ipus)
        )

    def forward(self, x, target=None):
        for layer in self.layers:
            x = layer(x)
        return x if target is None else (x, F.mse_loss(x, target))


def compiled(model, opts, training=True):
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    executor = wrap(model, opts)
    rows = opts.device_iterations * opts.Training.gradient_accumulation * opts.replication_factor
    executor.compile(*[torch.ones(rows, 3)] * 2 if training else [torch.ones(rows, 3)])
    return executor


def stages_of(executor, op, phase):
    nodes = executor._executable.program.graph.nodes
    tags = [tag_of(n) for n in nodes if op in str(n.target)]
    return [tag.stage for tag in tags if tag.phase == phase]


def test_forward_and_backward_nodes_carry_the_stage_of_their_block():
    executor = compiled(Chain(0, 1, 1, 2), options())

    assert stages_of(executor, "addmm", "forward") == [0, 1, 1, 2]
    assert stages_of(executor, "mse_loss_backward", "backward") == [2]
    backward = stages_of(executor, "mm", "backward")
    assert backward == sorted(backward, reverse=True)
    assert set(backward) == {0, 1, 2}


def test_auto_increment_numbers_blocks_from_one_after_the_prologue():
    class Prologue(Chain):
        def forward(self, x, target=None):
            return super().forward(torch.tanh(x), target)

    opts = options(setExecutionStrategy=PipelinedExecution(AutoStage.AutoIncrement))
    executor = compiled(Prologue(None, None), opts)

    assert stages_of(executor, "tanh", "forward") == [0]
    assert stages_of(executor, "addmm", "forward") == [1, 2]


def test_annotations_change_no_number():
    model, x = Chain(0, 1, 2), torch.randn(8, 3)
    plain = twin(model)
    poptorch.removeBlocks(plain)

    for each in (model, plain):
        poptorch.trainingModel(each, options(accumulation=4), sgd(each))(x, x)

    assert same_state(model, plain)


@pytest.mark.parametrize(
    ("blocks", "walk", "strategy", "stages", "ipus", "count"),
    [
        ([], [], PipelinedExecution(), (), (), 1),
        ([("a", 0), ("b", 1)], [1, 2], PipelinedExecution(), (0, 1), (0, 1), 2),
        ([("a", 0), ("b", 0), ("c", 1)], [1, 2, 3], PipelinedExecution(), (0, 0, 1), (0, 0, 1), 2),
        (
            [("a", None), ("b", None), ("c", None)],
            [1, 2, 3],
            PipelinedExecution(Stage("a").ipu(0), Stage("b").ipu(1), Stage("c").ipu(0)),
            (0, 1, 2),
            (0, 1, 0),
            3,
        ),
        (
            [("a", 3), ("b", None)],
            [1, 2],
            PipelinedExecution(["a"], Stage("b").ipu(2)),
            (0, 1),
            (3, 2),
            3,
        ),
    ],
)
def test_stages_ipus_and_their_number(blocks, walk, strategy, stages, ipus, count):
    placement = place_blocks(blocks, walk, strategy, strict=True)

    assert placement.stages == stages
    assert placement.ipus == ipus
    assert placement.forward_stages == count
    assert placement.ipus_per_replica == max((0, *ipus)) + 1


@pytest.mark.parametrize(
    ("strategy", "ipus"),
    [
        (SerialPhasedExecution("a", "b", "c"), (0, 0, 0)),
        (SerialPhasedExecution(Phase(Stage("a"), Stage("b")), Phase("c")), (0, 1, 0)),
        (ParallelPhasedExecution("a", "b", "c"), (0, 1, 0)),
        (ParallelPhasedExecution(Phase(Stage("a"), Stage("b")), Phase("c")), (0, 2, 1)),
    ],
)
def test_phases_share_or_alternate_their_ipus(strategy, ipus):
    blocks = [("a", None), ("b", None), ("c", None)]

    assert place_blocks(blocks, [1, 2, 3], strategy, strict=True).ipus == ipus


def test_strict_training_needs_as_many_accumulation_steps_as_stages():
    for accumulation in (1, 6):
        with pytest.raises(poptorch.Error, match="must be greater than or equal") as error:
            compiled(Chain(0, 1, 2, 3), strict(accumulation=accumulation))
        text = str(error.value)
        assert "Training.gradientAccumulation" in text
        assert "(7)" in text
        assert "4 forward stages and 3 additional backward stages" in text

    compiled(Chain(0, 1, 2, 3), strict(accumulation=7))
    compiled(Chain(0, 1, 2, 3), options(accumulation=1))


def test_strict_inference_needs_as_many_device_iterations_as_stages():
    with pytest.raises(poptorch.Error) as error:
        compiled(Chain(0, 1), strict(), training=False)
    assert str(error.value).startswith("poptorch.Options().deviceIterations must be greater than")

    compiled(Chain(0, 1), strict(deviceIterations=2), training=False)
    compiled(Chain(0, 1), options(), training=False)


def test_sharded_execution_has_no_minimum():
    compiled(Chain(0, 1, 2, 3), strict(setExecutionStrategy=ShardedExecution()))


def test_strict_mode_counts_devices():
    with pytest.raises(poptorch.Error, match="use of 3 IPUs"):
        compiled(Chain(0, 1, 2), strict(accumulation=5))
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\)"):
        compiled(Chain(0, 1), strict(accumulation=3, replicationFactor=64))

    compiled(Chain(0, 1, 2), strict(accumulation=5, autoRoundNumIPUs=True))
    compiled(Chain(0, 1, 2), options())


def test_a_block_without_an_ipu_is_refused_in_strict_mode_only():
    with pytest.raises(AssertionError, match="'b1' has no ipu_id"):
        compiled(Chain(0, None), strict(accumulation=3))

    assert compiled(Chain(0, None), options()).isCompiled()


def test_a_block_that_is_in_no_stage_is_refused_with_the_known_ones():
    opts = options(setExecutionStrategy=PipelinedExecution("b0", "bb"))

    with pytest.raises(AssertionError, match=r"unknown block 'b1'.*'b0', 'bb'"):
        compiled(Chain(None, None), opts)


def test_strict_mode_refuses_stages_that_go_back():
    with pytest.raises(poptorch.Error, match="must not decrease"):
        compiled(Chain(0, 1, 0), strict(accumulation=9))

    compiled(Chain(0, 1, 0), options())


class Scoped(nn.Module):
    def __init__(self, loss_inside: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.loss_inside = loss_inside

    def forward(self, x, target):
        with Block("a", ipu_id=0):
            out = self.fc(x)
            if self.loss_inside:
                return out, F.mse_loss(out, target)
        return out, F.mse_loss(out, target)


def test_an_op_after_a_block_scope_has_no_place_in_strict_mode():
    with pytest.raises(poptorch.Error, match="No active Block"):
        compiled(Scoped(loss_inside=False), strict())

    compiled(Scoped(loss_inside=True), strict())
    default = compiled(Scoped(loss_inside=False), options())
    assert stages_of(default, "mse_loss", "forward") == [0]
