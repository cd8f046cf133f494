"""Reports: written where scripts ask for them, complete, and readable by old names."""

from __future__ import annotations

import json
import sqlite3

import pytest
import torch
from tests.unit.machine.records import Stack
from torch import nn

import poptorch
from pantile import pva
from pantile.errors import Error, OptionError
from pantile.runtime.reports import report_directory


def options():
    return poptorch.Options().engine("reference").showCompilationProgressBar(False)


@pytest.fixture
def report(tmp_path):
    chosen = options().enableProfiling(str(tmp_path))
    chosen.Training.gradientAccumulation(2)
    step = poptorch.trainingModel(Stack(layers=2, width=16), chosen)
    step(torch.zeros(8, 16))
    return json.loads((tmp_path / "training" / "report.json").read_text())


def test_training_and_inference_have_folders_of_their_own(tmp_path):
    model = nn.Linear(4, 4)
    poptorch.inferenceModel(model, options().enableProfiling(str(tmp_path)))(torch.zeros(2, 4))

    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*"))
    names = ("profile.pop", "report.html", "report.json", "trace.json")
    assert written == [f"inference/{name}" for name in names]


def test_no_report_without_being_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    poptorch.inferenceModel(nn.Linear(4, 4), options())(torch.zeros(2, 4))

    assert list(tmp_path.iterdir()) == []


def test_variables_of_old_run_scripts_are_honoured_and_come_first(monkeypatch, tmp_path):
    chosen = options().enableProfiling("from-options")
    settings = {"autoReport.all": "true", "autoReport.directory": str(tmp_path)}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(settings))
    assert report_directory(chosen) == tmp_path

    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.outputGraphProfile": "true"}')
    assert str(report_directory(chosen)) == "."

    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS")
    monkeypatch.setenv("PVTI_OPTIONS", '{"enable":"true","directory":"reports"}')
    assert str(report_directory(options())) == "reports"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_variable_that_is_no_object_is_an_error(monkeypatch, text):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)

    with pytest.raises(OptionError, match="POPLAR_ENGINE_OPTIONS"):
        report_directory(options())


def test_the_parts_of_a_report_agree(report):
    summary, stages = report["summary"], report["stages"]
    assert report["version"] == 1
    assert summary["verdict"] == "fits"
    assert summary["samples_per_second"] * summary["seconds_per_update"] == pytest.approx(8)
    assert summary["samples_per_second_low"] < summary["samples_per_second"]
    assert sum(op["cycles"] for op in report["ops"]) == pytest.approx(
        sum(u["forward_cycles"] + u["backward_cycles"] for s in stages for u in s["units"])
    )
    weights = sum(p.numel() * 4 for p in Stack(2, 16).parameters())
    assert stages[0]["memory"]["weights"] == weights
    assert len(stages[0]["tiles"]) == report["target"]["tiles_per_ipu"]
    assert report["liveness"][0]["ops"] == [op["id"] for op in report["ops"]]
    assert report["scaling"][0]["samples_per_second"] == pytest.approx(
        summary["samples_per_second"]
    )
    assert any(c["assumed"] for c in report["target"]["constants"])
    assert report["calibration"]["factors"]["general"] > 1


def test_the_bytes_alive_are_those_of_the_tensors_that_live_then(report):
    found = report["liveness"][0]

    for place, expected in enumerate(found["bytes"]):
        alive = [n for _, first, last, n in found["lifetimes"] if first <= place <= last]
        assert sum(alive) == expected
    assert max(found["bytes"]) > 0


def test_ops_name_their_line_in_the_users_file(report):
    sources = {op["source"].rpartition(":")[0] for op in report["ops"] if op["source"]}

    assert sources == {Stack.__init__.__code__.co_filename}


def test_a_module_may_be_called_anything(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<script>alert(1)", nn.Linear(4, 4))

        def forward(self, x):
            return next(self.children())(x)

    chosen = options().enableProfiling(str(tmp_path))
    poptorch.inferenceModel(Odd(), chosen)(torch.zeros(2, 4))

    data = json.loads((tmp_path / "inference/report.json").read_text())
    assert "<script>alert(1)" in {op["module"] for op in data["ops"]}


def test_the_trace_covers_the_time_of_a_micro_batch(tmp_path, report):
    trace = json.loads((tmp_path / "training" / "trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0 and e["pid"] == 0]

    cycles = sum(op["cycles"] for op in report["ops"])
    end = max(e["ts"] + e["dur"] for e in spans)
    assert end == pytest.approx(cycles / report["target"]["clock_hz"] * 1e6)
    starts = [e["ts"] for e in spans]
    assert starts == sorted(starts)


def test_scripts_written_for_pva_find_their_names(tmp_path, report):
    opened = pva.openReport(tmp_path)

    target = opened.compilation.target
    assert (target.numIPUs, target.tilesPerIpu, target.numReplicas) == (1, 1472, 1)
    assert len(opened.compilation.tiles) == target.numTiles
    assert opened.compilation.tiles[0].memory.total.includingGaps > 0
    assert [s.name for s in opened.execution.steps] == [op["op"] for op in report["ops"]]
    assert opened.compilation.livenessProgramSteps[0].notAlwaysLiveMemory.bytes >= 0


def test_an_old_profile_can_be_imported(tmp_path):
    file = tmp_path / "profile.pop"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE memory_by_tile (tile INTEGER, total INTEGER)")
        connection.executemany("INSERT INTO memory_by_tile VALUES (?, ?)", [(0, 10), (1, 20)])
        connection.execute("CREATE TABLE programs (name TEXT)")
        connection.executemany("INSERT INTO programs VALUES (?)", [("matmul",), ("exchange",)])
        connection.execute("CREATE TABLE steps_by_ipu (cycles INTEGER)")
        connection.executemany("INSERT INTO steps_by_ipu VALUES (?)", [(100,), (7,)])
    connection.close()

    opened = pva.openReport(file)

    assert [t.memory.total.includingGaps for t in opened.compilation.tiles] == [10, 20]
    assert [(s.name, s.cycles) for s in opened.execution.steps] == [
        ("matmul", 100),
        ("exchange", 7),
    ]


def test_a_script_finds_a_report_where_the_sdk_wrote_its_profile(tmp_path):
    chosen = options().enableProfiling(str(tmp_path)).modelName("tiny")

    poptorch.inferenceModel(nn.Linear(4, 4), chosen)(torch.zeros(2, 4))

    assert pva.openReport(tmp_path / "tiny" / "profile.pop").compilation.target.numIPUs == 1


def test_a_profile_of_the_sdk_is_not_overwritten(tmp_path):
    old = tmp_path / "inference" / "profile.pop"
    old.parent.mkdir()
    old.write_bytes(b"SQLite format 3")

    chosen = options().enableProfiling(str(tmp_path))
    poptorch.inferenceModel(nn.Linear(4, 4), chosen)(torch.zeros(2, 4))

    assert old.read_bytes() == b"SQLite format 3"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": 1}', "SQLite format 3\0broken"])
def test_what_is_no_report_is_an_error(tmp_path, content):
    file = tmp_path / "report.json"
    file.write_text(content)

    with pytest.raises(Error):
        pva.openReport(file)


def test_a_report_of_a_later_release_is_refused(tmp_path, report):
    file = tmp_path / "later.json"
    file.write_text(json.dumps({**report, "version": 2}))

    with pytest.raises(Error, match="version 2"):
        pva.openReport(file)
