"""Stages, phases and the four strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pantile.enums import AutoStage, Liveness
from pantile.errors import Error
from pantile.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)


def test_a_stage_groups_blocks_on_an_ipu() -> None:
    stage = Stage("a", "b")

    assert stage.ipu(2) is stage
    assert (stage.blocks, stage.ipu_id) == (("a", "b"), 2)
    assert repr(stage) == "Stage('a', 'b').ipu(2)"


def test_a_phase_of_block_ids_is_one_stage() -> None:
    phase = Phase("a", "b")

    assert [stage.blocks for stage in phase.stages] == [("a", "b")]


def test_a_phase_of_stages_runs_them_side_by_side() -> None:
    phase = Phase(Stage("a"), Stage("b"))

    result = phase.ipus(0, 2)  # type: ignore[func-returns-value]

    assert result is None
    assert [stage.ipu_id for stage in phase.stages] == [0, 2]
    assert phase.stage(1).blocks == ("b",)


@pytest.mark.parametrize("kind", [PipelinedExecution, ShardedExecution])
def test_a_pipeline_takes_stages_block_ids_and_lists(kind: type[PipelinedExecution]) -> None:
    last = Stage("d")

    strategy = kind("a", ["b", "c"], last)

    assert [stage.blocks for stage in strategy.stages] == [("a",), ("b", "c"), ("d",)]
    assert strategy.stage("d") is last
    assert strategy.auto_stage is None


@pytest.mark.parametrize(
    ("strategy", "auto"),
    [
        (PipelinedExecution(), AutoStage.SameAsIpu),
        (PipelinedExecution(AutoStage.SameAsIpu), AutoStage.SameAsIpu),
        (PipelinedExecution(AutoStage.AutoIncrement), AutoStage.AutoIncrement),
        (ShardedExecution(AutoStage.AutoIncrement), AutoStage.AutoIncrement),
    ],
)
def test_stages_can_be_left_to_the_blocks(strategy: PipelinedExecution, auto: AutoStage) -> None:
    assert strategy.auto_stage is auto
    assert strategy.stages == ()
    assert f"AutoStage.{auto.name}" in repr(strategy)


def test_a_block_is_numbered_by_its_list_its_ipu_or_its_turn() -> None:
    listed = PipelinedExecution("a", ["b", "c"])
    by_ipu = PipelinedExecution(AutoStage.SameAsIpu)
    by_turn = PipelinedExecution(AutoStage.AutoIncrement)

    assert listed.stage_of("c", None, blocks_before=0) == 1
    assert by_ipu.stage_of("x", 3, blocks_before=0) == 3
    assert by_turn.stage_of("x", None, blocks_before=0) == 1
    assert by_turn.stage_of("y", None, blocks_before=1) == 2


def test_the_same_stage_twice_by_value_keeps_its_place() -> None:
    strategy = PipelinedExecution(Stage(), "a", Stage(), "b")

    assert strategy.stage_of("b", None, blocks_before=0) == 3


def test_only_the_pipelined_strategy_is_pipelined() -> None:
    assert PipelinedExecution().is_pipelined
    assert not ShardedExecution().is_pipelined
    assert not SerialPhasedExecution("a").is_pipelined


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (PipelinedExecution(), {"execution_mode": 0}),
        (ShardedExecution("a"), {"execution_mode": 1}),
        (
            SerialPhasedExecution("a", "b")
            .useSeparateBackwardPhase()
            .setTensorsLiveness(Liveness.OffChipAfterEachPhase),
            {
                "execution_mode": 2,
                "serial_phases_execution": True,
                "separate_backward_phase": True,
                "tensors_liveness": 3,
            },
        ),
        (
            ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd(),
            {
                "execution_mode": 2,
                "serial_phases_execution": False,
                "separate_backward_phase": False,
                "tensors_liveness": 1,
            },
        ),
    ],
)
def test_a_strategy_says_itself_in_numbers(strategy: Any, expected: dict[str, int]) -> None:
    assert strategy.backendOptions() == expected


@pytest.mark.parametrize("kind", [SerialPhasedExecution, ParallelPhasedExecution])
def test_phases_are_made_of_anything_with_blocks(kind: Any) -> None:
    strategy = kind(Phase("a"), Stage("b"), ["c", "d"], "e", [Stage("f"), Stage("g")])

    blocks = [[stage.blocks for stage in phase.stages] for phase in strategy.phases]
    assert blocks == [[("a",)], [("b",)], [("c", "d")], [("e",)], [("f",), ("g",)]]
    assert strategy.phase(4).stage(1) is strategy.stage("g")


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Stage(1), "ids of blocks"),  # type: ignore[arg-type]
    (lambda: Stage("a").ipu("0"), "takes an int"),  # type: ignore[arg-type]
    (lambda: Phase("a", Stage("b")), "either stages or block ids"),
    (lambda: Phase(3), "either stages or block ids"),  # type: ignore[arg-type]
    (lambda: Phase("a", "b").ipus(0, 1), "2 IPUs for 1 stages"),
    (lambda: Phase("a").stage(1), "only 1"),
    (lambda: PipelinedExecution("a", "a"), "'a' is in two stages"),
    (lambda: PipelinedExecution(Stage("a", "a")), "'a' is in two stages"),
    (lambda: PipelinedExecution(3), "takes stages, block ids"),
    (lambda: PipelinedExecution([1]), "ids of blocks"),
    (lambda: PipelinedExecution(AutoStage.SameAsIpu, "a"), "takes stages, block ids"),
    (lambda: PipelinedExecution("layer").stage("layr"), "expected one of: 'layer'"),
    (lambda: PipelinedExecution("layer").stage("layr"), "did you mean 'layer'"),
    (lambda: PipelinedExecution().stage("a"), "unknown block 'a'"),
    (lambda: PipelinedExecution().stage_of("a", None, blocks_before=0), "has no ipu_id"),
    (lambda: SerialPhasedExecution(), "at least one phase"),
    (lambda: ParallelPhasedExecution(), "at least one phase"),
    (lambda: SerialPhasedExecution("a", Phase("a")), "'a' is in two stages"),
    (lambda: SerialPhasedExecution(1), "takes phases"),
    (lambda: SerialPhasedExecution("a").phase(2), "only 1"),
    (lambda: SerialPhasedExecution("a").setTensorsLiveness("x"), "takes a Liveness"),  # type: ignore[arg-type]
    (lambda: SerialPhasedExecution("a").useSeparateBackwardPhase(3), "takes a bool"),  # type: ignore[arg-type]
    (lambda: ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd(3), "takes a bool"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("mistake", "fragment"), MISTAKES)
def test_a_strategy_that_cannot_be_is_refused(mistake: Callable[[], Any], fragment: str) -> None:
    with pytest.raises(AssertionError) as caught:
        mistake()

    assert isinstance(caught.value, Error)
    assert fragment in str(caught.value)
    assert caught.value.fix


def test_a_copied_strategy_finds_its_own_stages() -> None:
    original = PipelinedExecution(Stage("a"))

    twin = copy.deepcopy(original)
    twin.stage("a").ipu(1)

    assert twin.stages[0].ipu_id == 1
    assert original.stage("a").ipu_id is None


def test_the_machine_model_is_told_that_tensors_leave_the_chip_between_phases() -> None:
    strategy = SerialPhasedExecution("a", "b").setTensorsLiveness(Liveness.OffChipAfterFwd)
    options = Options().setExecutionStrategy(strategy)
    options.TensorLocations.setWeightLocation(TensorLocationSettings().useOnChipStorage(True))

    locations = options.machineSettings()["locations"]

    assert locations["optimizer"] == {"onChip": 0}
    assert locations["weight"]["onChip"] == 1  # as said
    assert Options().machineSettings()["locations"]["optimizer"] == {}
