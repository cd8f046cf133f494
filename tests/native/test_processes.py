"""Many processes compile the same model at once: one does, all get it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.native.runs import command, run_script

from pantile.store.cache import ExecutableCache

TRAIN = """
import sys
import torch
torch.set_num_threads(1)
from tests.native.runs import batch, momentum, options, seeded
import poptorch
model = seeded()
chosen = options(deviceIterations=2).enableExecutableCaching(sys.argv[1])
step = poptorch.trainingModel(model, chosen, momentum(model.parameters()))
print("ready", flush=True)
sys.stdin.read()  # until all are ready
for _ in range(3):
    loss = step(*batch(2))[1]
print(loss.item().hex(), *(p.double().sum().item().hex() for p in model.parameters()))
"""


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_processes_that_start_together_compile_once(count: int, tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    environment = {**os.environ, "POPTORCH_LOG_LEVEL": "DEBUG", "POPTORCH_LOG_DEST": str(log)}
    children = [
        subprocess.Popen(
            command(TRAIN, str(folder)),
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    printed = [child.stdout.read() for child in children if child.stdout is not None]

    assert [child.wait() for child in children] == [0] * count
    assert len(set(printed)) == 1
    (file,) = folder.iterdir()
    assert ExecutableCache(folder, limit_bytes=None).find(file.stem) is not None
    lines = log.read_text().splitlines()
    assert sum(line.endswith(": compiled") for line in lines) == 1
    assert sum(line.endswith(": found") for line in lines) == count - 1


INTERRUPTED = """
import os
import signal
import threading
import time
import torch
torch.set_num_threads(1)
from tests.native.runs import Pass, options
import poptorch

def heavy(x):
    for _ in range(4):
        x = torch.tanh(x @ torch.ones(256, 256)) + 1
    return x

ITERATIONS = 50_000
model = poptorch.inferenceModel(
    Pass(heavy), options(deviceIterations=ITERATIONS, outputMode=poptorch.OutputMode.Final)
)
x = torch.zeros(ITERATIONS, 256)
model.compile(x)
sent = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

timer = threading.Timer(0.7, interrupt)
begin = time.perf_counter()
timer.start()
try:
    model(x)
except KeyboardInterrupt:
    now = time.perf_counter()
    print("interrupted", now - sent[0])
else:
    print("finished", time.perf_counter() - begin)
print("alive", float(model.model(x[:1]).sum()))
"""


def test_ctrl_c_ends_a_long_call_within_a_second() -> None:
    first, second = run_script(INTERRUPTED).splitlines()

    what, seconds = first.split()
    assert what == "interrupted"
    assert float(seconds) < 1
    assert second.startswith("alive")
