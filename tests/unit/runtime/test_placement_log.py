"""Where ops run, and what else is written about a compiled step: log lines, files."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 6


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l0, self.l1, self.l2 = Scale(), Scale(), Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l2(self.l1(self.l0(x)))


def options() -> poptorch.Options:
    return poptorch.Options().strict().engine("reference").deviceIterations(4)


def told(model: nn.Module, given: poptorch.Options, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.DEBUG, logger="poptorch::python"):
        poptorch.inferenceModel(model, given)(torch.randn(4, 5))
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_an_op_is_told_with_its_ipu_and_stage(caplog: pytest.LogCaptureFixture) -> None:
    model = Three()
    poptorch.BeginBlock(model.l1, ipu_id=1)

    lines = told(model, options(), caplog)

    assert "enablePipelining set to value 1" in lines
    assert " l0/Mul:0 [float32(1, 5), mode(Pipelined), ipu(0), stage(0)]" in lines
    assert " l1/Mul:0 [float32(1, 5), mode(Pipelined), ipu(1), stage(1)]" in lines
    assert " l2/Mul:0 [float32(1, 5), mode(Pipelined), ipu(1), stage(1)]" in lines


def test_an_op_in_a_scope_of_attributes_is_told_with_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.GroupNorm(1, 5), nn.GroupNorm(1, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Attribute(__outline={"layer": "embedding"}):
                x = self.inside(x)
            return self.outside(x)

    found = [line for line in told(Model(), options(), caplog) if line.startswith("Op ")]

    assert [line.split('"')[1] for line in found] == ["inside/GroupNormalization"]
    header, result, given = found[0].splitlines()
    assert header.endswith(" of type ai.graphcore.GroupNormalization:1")
    assert result == "  inside/GroupNormalization:0"
    assert given == "    layer: layer:embedding"


def test_stages_are_counted_as_the_strategy_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            poptorch.Block.useAutoId()
            with poptorch.Block(ipu_id=0):
                x = x * 2
            with poptorch.Block(ipu_id=1):
                return x * 3

    given = options().setExecutionStrategy(
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    )

    lines = told(Model(), given, caplog)

    assert " Mul:0 [float32(1, 5), mode(Pipelined), ipu(0), stage(1)]" in lines
    assert " Mul:0/1 [float32(1, 5), mode(Pipelined), ipu(1), stage(2)]" in lines


def test_parts_of_a_split_and_an_absolute_loss_have_the_names_of_the_backend(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.loss = nn.Linear(5, 5), nn.L1Loss()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            left, right = torch.split(self.fc(x), [2, 3], dim=1)
            return left, self.loss(right, torch.zeros_like(right))

    with caplog.at_level(logging.DEBUG, logger="poptorch::python"):
        poptorch.trainingModel(Model(), options())(torch.randn(4, 5))

    place = "mode(Pipelined), ipu(0), stage(0)"
    wanted = [
        f" Slice:0 [float32(1, 2), {place}]",
        f" Slice:0/1 [float32(1, 3), {place}]",
        f" loss/L1:0 [float32(), {place}]",
        f" loss/IdentityLoss:0 [float32(), {place}]",
    ]
    assert [text for text in caplog.messages if text in wanted] == wanted


def test_one_stage_is_no_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    assert "enablePipelining set to value 0" in told(Three(), options(), caplog)


def test_the_choice_of_the_ipu_model_is_told(caplog: pytest.LogCaptureFixture) -> None:
    line = "From the user configuration: Ipu model: {}"

    assert line.format("Enabled") in told(Three(), options().useIpuModel(True), caplog)
    assert line.format("Disabled") in told(Three(), options().useIpuModel(False), caplog)
    assert not any("Ipu model" in text for text in told(Three(), options(), caplog))


def test_the_step_is_written_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "step.json"
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(file))

    poptorch.inferenceModel(Three(), options())(torch.randn(4, 5))

    ops = json.loads(file.read_text())["maingraph"]
    assert [op["name"].partition(":")[0] for op in ops] == ["l0/Mul", "l1/Mul", "l2/Mul"]


def test_dot_checks_are_drawn_in_the_log_directory(tmp_path: Path) -> None:
    given = options().logDir(str(tmp_path / "logs"))
    given._Popart.set("dotChecks", ["FINAL"])

    poptorch.inferenceModel(Three(), given)(torch.randn(4, 5))

    text = (tmp_path / "logs" / "inference_final.dot").read_text()
    assert text.startswith("digraph") and text.count("->") == 3
    assert "Mul\\nl2/Mul:0" in text


def test_a_client_may_call_the_model_in_its_own_way() -> None:
    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.model(x)
            return out, nn.functional.mse_loss(out, y)

    model = nn.Linear(3, 3)
    twin = nn.Linear(3, 3)
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    executor = poptorch.PoplarExecutor(
        model=WithLoss(model),
        options=None,
        training=True,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        user_model=model,
        poptorch_version=poptorch.__version__,
    )

    _, loss = executor(x, y)

    expected = nn.functional.mse_loss(twin(x), y)
    expected.backward()
    assert torch.allclose(loss, expected)
    assert twin.weight.grad is not None
    assert torch.allclose(model.weight, twin.weight - 0.1 * twin.weight.grad)


def test_a_block_on_two_ipus_is_told_with_both(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block("0", ipu_id=0):
                y = x * 2
            with poptorch.Block("0", ipu_id=2):
                return y * 3

    strategy = poptorch.ParallelPhasedExecution("0", "1")
    lines = told(Model(), options().setExecutionStrategy(strategy).autoRoundNumIPUs(), caplog)

    assert " Mul:0 [float32(1, 5), mode(Phased), ipu(0), phase(0)]" in lines
    assert " Mul:0/1 [float32(1, 5), mode(Phased), ipu(2), phase(0)]" in lines
    assert "executionPhaseSettings.stages set to value 2" in lines
    assert "location_weight set to value useOnChipStorage(False)" in lines


@pytest.mark.parametrize(
    ("liveness", "phases", "stride"),
    [
        (poptorch.Liveness.AlwaysLive, 3, 1),
        (poptorch.Liveness.OffChipAfterFwd, 6, 1),
        (poptorch.Liveness.OffChipAfterFwdNoOverlap, 8, 2),
        (poptorch.Liveness.OffChipAfterEachPhase, 12, 4),
    ],
)
def test_serial_phases_leave_room_for_what_leaves_the_chip(
    liveness: poptorch.Liveness, phases: int, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in "abc":
                with poptorch.Block(block):
                    x = x * 2
            return x

    strategy = poptorch.SerialPhasedExecution("a", "b", "c").setTensorsLiveness(liveness)
    for block in "abc":
        strategy.stage(block).ipu(0)
    lines = told(Model(), options().setExecutionStrategy(strategy), caplog)

    assert f"executionPhaseSettings.phases set to value {phases}" in lines
    assert f" Mul:0/2 [float32(1, 5), mode(Phased), ipu(0), phase({2 * stride})]" in lines


def test_the_log_tells_the_line_each_op_comes_from_unless_it_is_excluded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Scale.forward.__code__.co_firstlineno + 1
    hidden = options().appendToLocationExcludes("placement_log")

    shown = told(Scale(), options(), caplog)
    without = told(Scale(), hidden, caplog)

    assert f"poptorch.mul ({__file__}:{line}) was lowered to Mul" in shown
    assert "poptorch.mul ([unknown]) was lowered to Mul" in without
    assert not [told_line for told_line in without if __file__ in told_line]
