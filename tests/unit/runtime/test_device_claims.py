"""Two executors on one named IPU, executors in files, and how a MultiConv is told; strict mode."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import poptorch

X = torch.randn(2, 3)


def options() -> poptorch.Options:
    return poptorch.Options().strict().engine("reference")


def test_an_ipu_that_is_attached_cannot_be_attached_again() -> None:
    first = poptorch.inferenceModel(nn.Linear(3, 3), options().useIpuId(1))
    second = poptorch.inferenceModel(nn.Linear(3, 3), options().useIpuId(1))
    first(X)

    with pytest.raises(poptorch.Error, match="Failed to acquire IPU 1"):
        second(X)
    first.detachFromDevice()
    second(X)

    with pytest.raises(poptorch.Error, match="Failed to acquire"):
        first(X)


def test_an_executor_that_is_gone_holds_no_ipu() -> None:
    poptorch.inferenceModel(nn.Linear(3, 3), options().useIpuId(2))(X)

    poptorch.inferenceModel(nn.Linear(3, 3), options().useIpuId(2))(X)


OTHER_PROCESS = """
import torch, poptorch
options = poptorch.Options().strict().engine("reference").useIpuId(3)
executor = poptorch.inferenceModel(torch.nn.Linear(3, 3), options)
executor(torch.ones(2, 3))
print("attached", flush=True)
input()
executor.detachFromDevice()
print("detached", flush=True)
input()
"""


class Waiting(logging.Handler):
    """Tells when somebody logs that a device is waited for."""

    def __init__(self) -> None:
        super().__init__(level=1)
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "No IPU available, sleeping" in record.getMessage():
            self.seen.set()


def test_an_ipu_of_another_process_is_waited_for_if_the_environment_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    executor = poptorch.inferenceModel(nn.Linear(3, 3), options().useIpuId(3))
    command = [sys.executable, "-c", OTHER_PROCESS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    waiting = Waiting()
    poptorch.logger.addHandler(waiting)
    poptorch.setLogLevel("TRACE")
    try:
        with subprocess.Popen(command, **pipes) as other:
            assert other.stdout.readline() == "attached\n"
            caller = threading.Thread(target=executor, args=(X,))
            caller.start()
            assert waiting.seen.wait(60)
            assert not executor.isAttachedToDevice()

            other.stdin.write("\n")
            other.stdin.flush()
            caller.join(60)

            assert executor.isAttachedToDevice()
            other.communicate("\n")
    finally:
        poptorch.setLogLevel("WARN")
        poptorch.logger.removeHandler(waiting)


def test_without_an_id_there_are_always_enough() -> None:
    executors = [poptorch.inferenceModel(nn.Linear(3, 3), options()) for _ in range(3)]

    assert all(executor(X).shape == (2, 3) for executor in executors)


def test_a_pickled_executor_is_its_model_with_its_options() -> None:
    model = nn.Linear(3, 3)
    executor = poptorch.inferenceModel(model, options().deviceIterations(2))
    file = io.BytesIO()

    torch.save(executor, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)

    assert loaded.options.device_iterations == 2 and not loaded.isCompiled()
    assert torch.allclose(loaded(X), model(X))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv():
            return self.a(x) + self.b(x.abs())


def test_the_convolutions_of_a_scope_are_one_op() -> None:
    executor = poptorch.inferenceModel(nn.Sequential(Two(), Two()), options())
    executor(torch.randn(1, 3, 4))

    ops = json.loads(executor._debugGetPopartIR())["maingraph"]

    grouped = [op for op in ops if op["type"] == "MultiConv"]
    assert [len(op["outputs"]) for op in grouped] == [2, 2]
    assert not [op for op in ops if op["type"] == "Conv"]


def test_every_state_tensor_of_a_weight_per_replica_has_a_value_per_replica() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss((x @ self.w) ** 2, reduction="mean")

    model = Model()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options().replicationFactor(2), optimizer)
    executor.w.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    )
    executor(torch.randn(2, 3))

    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    executor(torch.randn(2, 3))

    assert {value.shape[0] for value in state["ipu_state"].values()} == {2}
    assert optimizer.state_dict()["ipu_state"]["Step___w"].tolist() == [2.0, 2.0]
