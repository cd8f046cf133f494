"""The native engine under the Trainer: compiled code trains to what the CPU trains to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tests.lightning import models
from tests.lightning.models import loader
from tests.lightning.test_parity import Case, assert_same, fit

from pantile.lightning import IPUStrategy


class Explanation(Callback):
    """What the strategy says of its programs when training ends."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.text = trainer.strategy.explain()


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_ENGINE", "native")


def test_a_fused_step_runs_natively_and_equals_the_cpu() -> None:
    strategy, told = IPUStrategy(), Explanation()
    case = Case(trainer={"limit_val_batches": 0})

    mine = fit(replace(case, callbacks=lambda: [told]), "ipu", strategy=strategy)

    assert "training_step (fused, native)" in told.text
    assert_same(mine, fit(case, "cpu"), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(models.WithMetrics),
        Case(models.WithHooks),
        Case(models.Gan),
        Case(models.WithNumbers),
        Case(trainer={"precision": "bf16-mixed"}, relative=2e-2),
    ],
    ids=["metrics", "split", "manual", "numbers", "mixed"],
)
def test_steps_of_every_kind_run_natively(case: Case) -> None:
    rtol = max(case.relative, 1e-4)

    assert_same(fit(case, "ipu"), fit(case, "cpu"), rtol)


@pytest.mark.slow
def test_device_iterations_and_replicas_run_natively() -> None:
    strategy = IPUStrategy(device_iterations=3)
    cpu, _ = fit(Case(train=partial(loader, 24, 8)), "cpu")

    module, _ = fit(Case(train=partial(loader, 24, 4)), "ipu", devices=2, strategy=strategy)

    torch.testing.assert_close(module.state_dict(), cpu.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_resumed_run_goes_on_to_the_same_bits_natively(tmp_path: Path) -> None:
    def run(epochs: int, path: Path | None = None) -> LightningModule:
        torch.manual_seed(3)
        module = models.Classifier()
        trainer = Trainer(
            accelerator="ipu",
            devices=1,
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(module, loader(), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return module

    unbroken = run(3)
    run(1)

    resumed = run(3, tmp_path / "last.ckpt")

    torch.testing.assert_close(resumed.state_dict(), unbroken.state_dict(), rtol=0, atol=0)
