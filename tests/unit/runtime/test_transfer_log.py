"""The log tells what goes to the device and what comes back: weights, optimizer, random state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch

X, LABELS = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
DOWN = (
    "Writing weights from IPU to host",
    "Writing optimiser state tensors from IPU to host.",
    "Reading random seed",
    "Reading RNG state",
)
UP = (
    "Writing weights from host to IPU memory",
    "Writing optimiser state tensors from host to IPU memory",
    "Setting random seed to 7",
    "Setting RNG state",
)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop, self.loss = nn.Linear(3, 3), nn.Dropout(), nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.drop(self.fc(x))
        return scores, self.loss(scores, labels)


class Transfers:
    """What the log said of transfers since it was asked last."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def told(self) -> set[str]:
        found = {text for text in self._caplog.messages if text in DOWN + UP}
        self._caplog.clear()
        return found


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Transfers]:
    with caplog.at_level(logging.DEBUG, logger="poptorch::python"):
        yield Transfers(caplog)


def training(options: poptorch.Options) -> poptorch.PoplarExecutor:
    model = Dropping()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, options.strict(True), optimizer)


def test_a_save_reads_all_and_a_load_writes_all(log: Transfers, tmp_path: Path) -> None:
    first = training(poptorch.Options().randomSeed(7))
    first(X, LABELS)
    log.told()

    first.save(tmp_path / "model")
    saved = log.told()
    second = poptorch.load(tmp_path / "model")
    loaded = log.told()

    assert (saved, loaded) == (set(DOWN), set(UP))
    torch.testing.assert_close(second(X, LABELS), first(X, LABELS))
    assert log.told() == set()


def test_a_device_gives_its_state_back_and_gets_it_again(log: Transfers) -> None:
    executor = training(poptorch.Options().randomSeed(7))
    executor(X, LABELS)
    log.told()

    executor.detachFromDevice()
    detached = log.told()
    executor(X, LABELS)

    assert (detached, log.told()) == (set(DOWN), set(UP))


def test_an_offline_target_has_nothing_to_read(log: Transfers, tmp_path: Path) -> None:
    executor = training(poptorch.Options().randomSeed(7).useOfflineIpuTarget())
    executor.compile(X, LABELS)
    log.told()

    executor.save(tmp_path / "model")
    saved = log.told()
    poptorch.load(tmp_path / "model")

    assert saved == set()
    assert log.told() == {UP[0], UP[2]}


def test_no_second_copy_is_made_of_weights_the_host_has(log: Transfers) -> None:
    executor = training(poptorch.Options())
    executor(X, LABELS)
    log.told()

    assert executor.copyWeightsToHostIfNeeded()
    assert not executor.copyWeightsToHostIfNeeded()

    assert log.told() == {DOWN[0]}
