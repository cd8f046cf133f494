"""What a compiled step cannot do is said before anything runs, with the line and the way out."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tests.lightning.models import CLASSES, Classifier, Gan, Optimizer, loader
from tests.lightning.test_parity import Case, assert_same, fit

import poptorch
from pantile.errors import CaptureError, DataDependentError, Error
from pantile.lightning import IPUStrategy

pytestmark = pytest.mark.usefixtures("reference")


class AsksForAValue(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if loss > 1e9:
            loss = loss * 0
        return loss


class TrainsOnAMetric(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.acc = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * self.acc(self(batch[0]), batch[1])


class BranchesOnAMetric(TrainsOnAMetric):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.acc(self(batch[0]), batch[1]) > 0.5:
            return self.loss(batch)
        return 2 * self.loss(batch)


class SetsItsRate(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizers().param_groups[0]["lr"] = 0.1 / (batch_idx + 1)
        return self.loss(batch)


class TakesAnIterator(Classifier):
    def training_step(self, dataloader_iter: Any) -> Any:
        batch, _, _ = next(dataloader_iter)
        return self.loss(batch)


class ReturnsAVector(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]).sum(0)


@pytest.mark.parametrize(
    ("module", "kind", "message"),
    [
        (AsksForAValue, DataDependentError, r"test_errors.py:\d+ in training_step: if loss > 1e9"),
        (TrainsOnAMetric, CaptureError, "the loss depends on the result of a metric"),
        (BranchesOnAMetric, CaptureError, r"bool\(\) needs a value that is not there"),
        (SetsItsRate, CaptureError, "sets 'lr' of an optimizer(.|\n)*fix: use a scheduler"),
        (TakesAnIterator, CaptureError, r"takes an iterator(.|\n)*fix: define training_step\("),
        (ReturnsAVector, CaptureError, r"a loss of shape \[3\](.|\n)*fix: return a scalar"),
    ],
)
def test_a_step_that_cannot_be_compiled(module: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        fit(Case(module), "ipu", max_epochs=1)


def test_a_fallback_that_was_asked_for_trains_on_the_cpu_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = fit(Case(AsksForAValue), "ipu", strategy=IPUStrategy(fallback="eager"))

    assert "training_step cannot be compiled and runs on the CPU" in caplog.text
    assert_same(mine, fit(Case(AsksForAValue), "cpu"), 1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{"detect_anomaly": True}, {"accumulate_grad_batches": 2}, {"precision": "16-mixed"}],
)
def test_what_needs_gradients_between_updates_of_one_call_is_refused(
    arguments: dict[str, Any],
) -> None:
    strategy = IPUStrategy(device_iterations=2)

    with pytest.raises(MisconfigurationException, match=r"cannot run in between.*Fix: use device"):
        fit(Case(), "ipu", strategy=strategy, **arguments)


def test_detect_anomaly_finds_a_gradient_that_is_not_a_number() -> None:
    class Nan(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (self(batch[0]) * 0 - 1).sqrt().mean()

    with pytest.raises(RuntimeError, match=r"nan values in the gradient of 'net.0.weight'"):
        fit(Case(Nan), "ipu", detect_anomaly=True)


def test_lbfgs_is_refused_where_one_call_makes_several_updates() -> None:
    case = Case(lambda: Optimizer(partial(torch.optim.LBFGS, max_iter=2)))

    with pytest.raises(MisconfigurationException, match="LBFGS"):
        fit(case, "ipu", strategy=IPUStrategy(device_iterations=2))


@pytest.mark.parametrize(
    "arguments", [{"step_mode": "both"}, {"fallback": "gpu"}, {"device_iterations": 0}]
)
def test_arguments_are_checked_when_they_are_given(arguments: dict[str, Any]) -> None:
    with pytest.raises(Error, match=f"IPUStrategy: {next(iter(arguments))}="):
        IPUStrategy(**arguments)


def test_options_against_a_flag_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    strategy = IPUStrategy(training_opts=poptorch.Options().replicationFactor(2))

    _, trainer = fit(Case(), "ipu", strategy=strategy, devices=3, max_epochs=1)

    assert "training_opts asks for 2 replicas, the Trainer for devices=3" in caplog.text
    assert trainer.num_training_batches == 3


def test_a_step_that_is_compiled_again_and_again_is_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NamesEachBatch(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(f"val_{batch_idx}", self.loss(batch))

    trainer = pl.Trainer(accelerator="ipu", logger=False, enable_progress_bar=False)
    trainer.validate(NamesEachBatch(), loader(17, 1), verbose=False)

    assert "validation_step was compiled 16 times" in caplog.text
    assert len(trainer.callback_metrics) == 17


def test_a_step_of_an_object_that_is_no_function_is_called_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Counted:
        calls = 0
        hooked = True  # else torch makes a function of it

        def __call__(self, closure: Any = None) -> None:
            self.calls += 1

    step = Counted()
    monkeypatch.setattr(torch.optim.SGD, "step", step)

    _, trainer = fit(Case(Gan), "ipu", max_epochs=1)

    assert step.calls == trainer.num_training_batches
    assert "runs on the CPU: SGD.step is no function" in caplog.text


def test_the_step_of_an_optimizer_of_the_users_own_is_called_each_time() -> None:
    class Counts(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            self.calls += 1
            return super().step(closure)

    mine = fit(Case(lambda: Optimizer(partial(Counts, lr=0.1))), "ipu", max_epochs=1)

    assert mine[1].strategy.mode_reasons == ["Counts.step"]
    assert mine[1].optimizers[0].calls == mine[1].global_step == 6
    theirs = fit(Case(lambda: Optimizer(partial(torch.optim.SGD, lr=0.1))), "cpu", max_epochs=1)
    assert_same(mine, theirs, 1e-6)
