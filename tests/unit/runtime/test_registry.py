"""The executors other processes can see."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import poptorch
from pantile.runtime.registry import running


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PANTILE_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def wrapped():
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    return poptorch.inferenceModel(nn.Linear(4, 2), options.deviceIterations(3))


def test_calls_are_counted():
    step = wrapped()
    assert running() == []

    for _ in range(5):
        step(torch.zeros(6, 4))

    (item,) = running()
    assert item.calls == 5
    assert (item.entry.kind, item.entry.name) == ("inference", "Linear")
    assert item.entry.samples_per_call == 6
    assert item.resident_bytes > 1e6


def test_a_native_executor_counts_its_short_calls_too():
    step = poptorch.inferenceModel(
        nn.Linear(4, 2),
        poptorch.Options().engine("native").showCompilationProgressBar(False),
    )

    for _ in range(7):
        step(torch.zeros(6, 4))

    (item,) = running()
    assert item.calls == 7


def test_an_executor_that_is_gone_is_not_listed(folder):
    step = wrapped()
    step(torch.zeros(6, 4))
    del step
    gc.collect()

    assert running() == []
    assert list(folder.iterdir()) == []


def test_files_of_a_dead_process_are_removed(folder):
    script = """
import os, torch, poptorch
from torch import nn
options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
step = poptorch.inferenceModel(nn.Linear(4, 2), options)
step(torch.zeros(6, 4))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(list(folder.glob("*.json"))) == 1

    assert running() == []
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_used_does_not_stop_a_model(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PANTILE_RUNTIME_DIR", str(blocked))

    assert wrapped()(torch.zeros(6, 4)).shape == (6, 2)


def test_a_damaged_entry_is_passed_over(folder):
    folder.mkdir()
    (folder / "1-0.json").write_text(json.dumps({"pid": 1}))
    (folder / "1-0.pulse").write_bytes(bytes(8))

    assert running() == []


def test_processes_have_ipus_of_their_own():
    script = """
import sys, torch, poptorch
options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
step = poptorch.inferenceModel(torch.nn.Linear(4, 2), options.replicationFactor(2))
step(torch.zeros(6, 4))
print("ready", flush=True)
sys.stdin.read()
"""
    mine = wrapped()
    mine(torch.zeros(6, 4))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "ready\n"
        found = sorted(item.entry.ipus for item in running())
        other.stdin.close()

    assert found == [(0,), (1, 2)]


def test_an_ipu_that_a_script_chose_is_shown():
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    step = poptorch.inferenceModel(nn.Linear(4, 2), options.useIpuId(3))

    step(torch.zeros(6, 4))

    (item,) = running()
    assert item.entry.ipus == (3,)
