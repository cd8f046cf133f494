"""The benchmarks run, and every engine in them gives eager's results. No word about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def benchmarks(*arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments, "--output", str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    output = tmp_path_factory.mktemp("results")
    chosen = ("--workloads", "W2", "--peers", "eager,pantile", "--threads", "1")
    done = benchmarks("train", *chosen, "--engine", "reference", "--quick", output=output)
    assert done.returncode == 0, done.stderr
    return json.loads((output / "results.json").read_text(encoding="utf-8")), output


def test_measures_every_engine_of_the_peers_asked_for(
    trained: tuple[dict[str, Any], Path],
) -> None:
    records = trained[0]["train"]

    assert {record["peer"] for record in records} == {
        "eager",
        "eager-fused",
        "pantile",
        "pantile-d8",
    }
    for record in records:
        for clock in ("cpu", "wall"):
            figures = record[clock]
            assert len(figures["rounds"]) == record["rounds"] >= 3
            assert 0 < figures["min"] <= figures["q1"] <= figures["median"] <= figures["q3"]


def test_every_engine_gives_the_losses_of_eager(trained: tuple[dict[str, Any], Path]) -> None:
    for record in trained[0]["train"]:
        check = record["check"]

        assert check["losses"] == pytest.approx(check["eager_losses"], rel=1e-4)
        assert check["losses"][0] > check["losses"][3]
        assert check["equal"]


def test_says_what_it_was_measured_on(trained: tuple[dict[str, Any], Path]) -> None:
    about = trained[0]["about"]

    assert about["quick"]
    assert about["engine"] == "reference"
    assert {"python", "torch", "pantile"} <= about["versions"].keys()


def test_the_table_shows_the_ratio_of_the_times(trained: tuple[dict[str, Any], Path]) -> None:
    results, output = trained
    times = {record["peer"]: record["cpu"]["min"] for record in results["train"]}
    ratio = min(times["eager"], times["eager-fused"]) / times["pantile"]

    text = (output / "results.md").read_text(encoding="utf-8")

    assert f"| W2 | {ratio:.2f} /" in text


def test_an_unknown_workload_is_refused_with_the_list_of_known_ones(tmp_path: Path) -> None:
    done = benchmarks("train", "--workloads", "W9", output=tmp_path)

    assert done.returncode == 2
    assert "'W9' is none of W1a" in done.stderr
