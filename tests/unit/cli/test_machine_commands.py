"""pantile plan, report, info, monitor, check, and the old names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from pantile.cli.main import main
from pantile.cli.old_names import other_tool

SCRIPT = """
import sys
import torch
import poptorch
from torch import nn

assert sys.argv[1:] == {arguments}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return poptorch.identity_loss(x, "mean")


def make():
    return Net(), (torch.zeros(2, 16),)


if __name__ == "__main__":
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(16)
    try:
        poptorch.trainingModel(Net(), options)(torch.zeros(32, 16))
    except Exception:
        raise SystemExit("the script must not see how planning ends")
    raise SystemExit("the script must not go on")
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PANTILE_RUNTIME_DIR", str(tmp_path / "run"))


def script(tmp_path, arguments=()):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(arguments=list(arguments)))
    return str(file)


def test_plan_runs_a_script_until_its_model_is_known(tmp_path, capsys):
    file = script(tmp_path, ["--lr", "0.1"])

    assert main(["plan", file, "--ipus", "2", "--batch", "64", "--args", "--lr 0.1"]) == 0

    shown = capsys.readouterr().out
    assert "Bow-Pod2" in shown
    assert "options = poptorch.Options()" in shown


def test_plan_takes_a_function_and_gives_json(tmp_path, capsys):
    wanted = f"{script(tmp_path, sys.argv[1:])}:make"

    assert main(["plan", wanted, "--ipus", "4", "--batch", "64", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    samples = found["replicas"] * found["micro_batch"] * found["gradient_accumulation"]
    assert samples == 64
    assert found["verdict"] == "fits"
    assert found["stages"][0]["first"] == "layers.0"


@pytest.mark.parametrize(
    ("what", "message"),
    [("absent.py", "no file"), ("{script}:other", "no function"), ("{empty}", "without compiling")],
)
def test_plan_says_what_is_wrong(tmp_path, capsys, what, message):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    where = what.format(script=script(tmp_path, sys.argv[1:]), empty=empty)

    assert main(["plan", where]) == 1
    assert message in capsys.readouterr().err


def test_report_shows_verdict_ops_and_a_comparison(tmp_path, capsys):
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.enableProfiling(str(tmp_path))
    poptorch.inferenceModel(nn.Linear(64, 32), options)(torch.zeros(16, 64))

    assert main(["report", str(tmp_path), "--against", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert "fits: fullest tile" in shown
    assert "addmm forward" in shown
    assert "1.000" in shown
    assert (tmp_path / "inference" / "comparison.html").is_file()


@pytest.mark.parametrize(("flags", "opened"), [(["--open"], 1), (["--no-open"], 0), ([], 0)])
def test_report_opens_a_browser_only_for_somebody(tmp_path, capsys, monkeypatch, flags, opened):
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.enableProfiling(str(tmp_path))
    poptorch.inferenceModel(nn.Linear(64, 32), options)(torch.zeros(16, 64))
    asked = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.setenv("DISPLAY", ":0")  # but no terminal

    assert main(["report", str(tmp_path), *flags]) == 0

    assert asked == [(tmp_path / "inference" / "report.html").as_uri()] * opened


def test_report_writes_the_page_where_it_is_told(tmp_path, capsys):
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.enableProfiling(str(tmp_path))
    poptorch.inferenceModel(nn.Linear(64, 32), options)(torch.zeros(16, 64))
    file = tmp_path / "elsewhere.html"

    assert main(["report", str(tmp_path), "--page", str(file)]) == 0

    assert f"The page: {file}" in capsys.readouterr().out
    assert file.read_text() == (tmp_path / "inference" / "report.html").read_text()


def test_report_of_nothing_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "no report" in capsys.readouterr().err


def test_info_lists_devices_and_their_attributes(capsys):
    assert main(["info"]) == 0
    assert "-+- Id: [0], target: [Fabric]" in capsys.readouterr().out

    assert main(["info", "-i", "-d", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["id"], found["board type"], found["clock"]) == (3, "virtual", "1850MHz")

    assert main(["info", "-d", "99"]) == 1


def test_info_shows_every_constant_and_what_is_assumed(capsys):
    assert main(["info", "--constants", "--chip", "GC200"]) == 0

    shown = capsys.readouterr().out
    assert "assumed: " in shown
    assert "1.325e+09" in shown
    assert "streaming_bytes_per_second" in shown  # of the pod, too


def test_monitor_shows_attached_processes(capsys):
    assert main(["monitor"]) == 0
    assert "No attached processes" in capsys.readouterr().out

    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    step = poptorch.inferenceModel(nn.Linear(4, 2), options)
    step(torch.zeros(2, 4))
    assert main(["monitor", "--json", "--interval", "0"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["pid"], row["calls"], row["kind"]) == (os.getpid(), 1, "inference")
    assert main(["monitor", "--interval", "0"]) == 0
    shown = capsys.readouterr().out
    assert "[active] has 16 reconfigurable IPUs" in shown
    assert "Attached processes in partition" in shown
    assert len({len(line) for line in shown.splitlines()}) == 1  # a table


def test_monitor_has_a_row_for_each_ipu_of_a_process(capsys):
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    step = poptorch.inferenceModel(nn.Linear(4, 2), options.replicationFactor(3))
    step(torch.zeros(3, 4))

    assert main(["monitor", "--interval", "0", "--no-card-info"]) == 0

    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    own = [row for row in rows if len(row) > 5 and row[1].strip() == str(os.getpid())]
    assert [row[5].strip() for row in own] == ["0", "1", "2"]


def test_check_trains_on_one_and_four_ipus(capsys):
    assert main(["check", "--quick", "--json"]) == 0

    found = {row["what"]: row["works"] for row in json.loads(capsys.readouterr().out)}
    assert found["training on 1 IPUs, reference"]
    assert found["training on 4 IPUs, reference"]


def test_an_old_name_steps_aside_for_the_real_tool(tmp_path, monkeypatch):
    def tool(folder: str, text: str) -> Path:
        file = tmp_path / folder / "gc-info"
        file.parent.mkdir()
        file.write_text(text)
        file.chmod(0o755)
        return file

    ours = tool("ours", "from pantile.cli.old_names import info")
    copy = tool("copy", "from pantile.cli.old_names import info")
    real = tool("real", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", os.pathsep.join(str(f.parent) for f in (ours, copy)))
    assert other_tool("gc-info", ours) is None

    monkeypatch.setenv("PATH", os.pathsep.join(str(f.parent) for f in (ours, copy, real)))
    assert other_tool("gc-info", ours) == real
