"""What a report says was measured: compilation, calls, and the micro-batches inside them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch

SCRIPT = """
import sys, torch, poptorch
options = poptorch.Options().engine("reference").enableProfiling(sys.argv[1])
model = poptorch.inferenceModel(torch.nn.Linear(4, 2), options)
for _ in range(3):
    model(torch.zeros(1, 4))
"""


def spans(folder: Path, lane: str) -> list[dict[str, Any]]:
    found = json.loads((folder / "report.json").read_text())["host"]["spans"]
    return [span for span in found if span["lane"] == lane]


def profiled(folder: Path, **sizes: int) -> poptorch.Options:
    options = poptorch.Options().enableProfiling(str(folder)).showCompilationProgressBar(False)
    return options.deviceIterations(sizes.get("iterations", 1))


def test_calls_and_their_micro_batches_are_within_the_time_they_took(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(nn.Linear(4, 2), profiled(tmp_path, iterations=5))
    model.compile(torch.zeros(5, 4))
    begin = time.perf_counter()
    for _ in range(3):
        model(torch.zeros(5, 4))
    elapsed = time.perf_counter() - begin
    model.detachFromDevice()

    calls = spans(tmp_path / "inference", "calls")
    parts = spans(tmp_path / "inference", "micro-batches")

    assert [call["name"] for call in calls] == ["call 0", "call 1", "call 2"]
    assert 0 < sum(call["seconds"] for call in calls) <= elapsed
    assert len(parts) == 3 * 5 * 3  # calls, device iterations, input and compute and output
    for part in parts:
        end = part["start"] + part["seconds"]
        assert any(
            call["start"] <= part["start"] and end <= call["start"] + call["seconds"] + 1e-9
            for call in calls
        )


def test_the_phases_of_compilation_follow_each_other(tmp_path: Path) -> None:
    poptorch.inferenceModel(nn.Linear(4, 2), profiled(tmp_path)).compile(torch.zeros(1, 4))

    phases = spans(tmp_path / "inference", "compile")

    assert [phase["name"] for phase in phases][:2] == ["capture", "passes"]
    for one, following in pairwise(phases):
        assert one["start"] + one["seconds"] <= following["start"] + 1e-9


def programs(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())["host"][
        "programs"
    ]
    return found


def test_the_report_says_that_our_kernels_ran(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(nn.Linear(4, 2), profiled(tmp_path).engine("native"))
    model.compile(torch.zeros(1, 4))
    model.detachFromDevice()

    (program,) = programs(tmp_path / "inference")

    assert program["part"] == "body" and program["lowering"] == "kernels"
    assert program["threads"] >= 1 and "why" not in program


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


def test_the_report_says_which_operators_were_called_between_kernels(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(Product(), profiled(tmp_path).engine("native"))
    model.compile(torch.zeros(4, 4, dtype=torch.float64))  # no rule of ours multiplies doubles
    model.detachFromDevice()

    (program,) = programs(tmp_path / "inference")

    assert program["lowering"] == "segments" and "float64" in program["why"]
    assert [call["operator"] for call in program["outside"]] == ["aten.mm.default"]


def test_the_report_says_why_inductor_wrote_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_LOWERING", "inductor")
    model = poptorch.inferenceModel(Product(), profiled(tmp_path).engine("native"))
    model.compile(torch.zeros(4, 4))
    model.detachFromDevice()

    (program,) = programs(tmp_path / "inference")

    assert program["lowering"] == "inductor"
    assert program["why"] == "PANTILE_LOWERING=inductor"


def test_the_report_says_why_the_reference_engine_ran(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(nn.Linear(4, 2), profiled(tmp_path).engine("reference"))
    model(torch.zeros(1, 4))
    model.detachFromDevice()

    (program,) = programs(tmp_path / "inference")

    assert program == {
        "part": "whole step",
        "lowering": "reference",
        "why": "the reference engine was asked for",
    }


def test_a_script_that_just_ends_leaves_its_calls_in_the_report(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, timeout=120)

    assert len(spans(tmp_path / "inference", "calls")) == 3


def test_the_report_of_a_later_program_is_not_overwritten(tmp_path: Path) -> None:
    first = poptorch.inferenceModel(nn.Linear(4, 2), profiled(tmp_path))
    first(torch.zeros(1, 4))
    second = poptorch.inferenceModel(nn.Conv1d(1, 1, 1), profiled(tmp_path))
    second(torch.zeros(1, 1, 4))
    first.detachFromDevice()

    written = json.loads((tmp_path / "inference" / "report.json").read_text())

    assert written["name"] == "Conv1d"


def test_many_micro_batches_do_not_crowd_out_the_calls(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(nn.Linear(2, 2), profiled(tmp_path, iterations=600))
    for _ in range(5):
        model(torch.zeros(600, 2))
    model.detachFromDevice()

    assert len(spans(tmp_path / "inference", "calls")) == 5
    assert len(spans(tmp_path / "inference", "micro-batches")) <= 5000


def test_only_the_first_calls_are_kept(tmp_path: Path) -> None:
    model = poptorch.inferenceModel(nn.Linear(2, 2), profiled(tmp_path))
    for _ in range(520):
        model(torch.zeros(1, 2))
    model.detachFromDevice()

    assert len(spans(tmp_path / "inference", "calls")) == 500
