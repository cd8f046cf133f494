"""Spans of host code, in a trace that Chrome and Perfetto read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import poptorch
from poptorch.profiling import Channel

SCRIPT = """
import poptorch

class Loader:
    def load(self, count):
        return list(range(count))

channel = poptorch.profiling.Channel("mine")
loader = channel.instrument(Loader(), "load")
with channel.tracepoint("epoch"):
    assert loader.load(3) == [0, 1, 2]
with poptorch.profiling.Channel("other").tracepoint("late"):
    pass
"""


def run(folder, options):
    environment = {**os.environ, "PVTI_OPTIONS": options} if options else dict(os.environ)
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, cwd=folder, check=True)
    return [json.loads(path.read_text()) for path in folder.rglob("*.json")]


def test_spans_are_written_to_a_trace(tmp_path):
    options = json.dumps({"enable": "true", "directory": str(tmp_path / "traces")})

    (trace,) = run(tmp_path, options)

    spans = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    rows = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert spans.keys() == {"epoch", "load", "late"}
    assert {name: span["tid"] for name, span in spans.items()} == {
        "epoch": rows["mine"],
        "load": rows["mine"],
        "late": rows["other"],
    }
    outer, inner = spans["epoch"], spans["load"]
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.parametrize("options", ["", '{"enable":"false"}'])
def test_nothing_is_written_unless_it_is_asked_for(tmp_path, options):
    assert run(tmp_path, options) == []


def test_an_instrumented_object_is_the_same_object_and_errors_pass():
    class Fails:
        def work(self):
            raise KeyError("mine")

    thing = Fails()

    assert Channel("c").instrument(thing, "work") is thing
    with pytest.raises(KeyError, match="mine"):
        thing.work()
    assert poptorch.profiling.Channel is Channel
