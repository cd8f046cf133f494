"""Paddle's CPU executor training its own LeNet, in a process of its own.

Paddle pins old versions of what other peers need, so it has an environment of its own; name its
interpreter with `--paddle-python`. `paddle_server.py` runs there and takes orders on its stdin.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.peer import Engine, Peer, Purpose, Settings
from benchmarks.workloads import Workload

_NAMES = {"conv1": "features.0", "conv2": "features.3", "fc1": "fc.0", "fc2": "fc.1", "fc3": "fc.2"}


def _weights(workload: Workload) -> dict[str, np.ndarray]:
    """The torch weights under Paddle's names; its linear layers keep them transposed."""
    found = {}
    for name, value in workload.model().state_dict().items():
        layer, kind = name.split(".")
        array = value.numpy()
        found[f"{_NAMES[layer]}.{kind}"] = array.T if array.ndim == 2 else array
    return found


class _Server:
    """The process with Paddle; every order is answered with one line of JSON."""

    def __init__(self, python: str, threads: int, data: Path) -> None:
        script = Path(__file__).with_name("paddle_server.py")
        self._process = subprocess.Popen(
            [python, "-I", str(script), str(data)],  # else `import paddle` finds this file
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def order(self, calls: int) -> dict[str, Any]:
        """Run that many steps; 0 only reads the clock."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Paddle's process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End of orders: the process leaves by itself."""
        self._process.communicate()


class Paddle(Peer):
    """The static graph of LeNet run by `paddle.static.Executor`."""

    name, family = "paddle", "paddle"

    def __init__(self, python: str | None) -> None:
        self._python = python

    def available(self) -> str | None:
        """An interpreter with Paddle must be named."""
        if self._python is None:
            return "no --paddle-python given"
        tried = subprocess.run([self._python, "-c", "import paddle"], capture_output=True)
        return f"{self._python} cannot import paddle" if tried.returncode else None

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Its own LeNet only."""
        return purpose == "training" and workload.name == "LeNet"

    def training(self, workload: Workload) -> Engine:
        """Start the process with the torch model's weights and batch."""
        assert self._python is not None
        x, labels = workload.batch()
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "start.npz"
            arrays: dict[str, Any] = _weights(workload)
            np.savez(data, x=x.numpy(), labels=labels.numpy(), lr=workload.update.lr, **arrays)
            server = _Server(self._python, torch.get_num_threads(), data)
        return Engine(
            run=server.order,
            read=lambda answer: np.array([answer["loss"]]),
            close=server.close,
            cpu_clock=lambda: server.order(0)["cpu"],
        )


def peers(settings: Settings) -> list[Peer]:
    """One executor."""
    return [Paddle(settings.paddle_python)]
