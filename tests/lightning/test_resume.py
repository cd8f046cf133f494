"""Checkpoints are Lightning's own: written here, read there, and the run goes on as if unbroken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.lightning.models import Classifier, Dropout, Gan, loader

pytestmark = pytest.mark.usefixtures("reference")


def run(kind: Any, accelerator: str, folder: Path, *, epochs: int, resume: Any = None) -> Any:
    pl.seed_everything(3, verbose=False)
    module = kind()
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, save_last=True)],
    )
    trainer.fit(module, loader(), ckpt_path=resume)
    return module


@pytest.mark.parametrize("kind", [Classifier, pytest.param(Gan, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("first", "second"), [("ipu", "ipu"), ("ipu", "cpu"), ("cpu", "ipu")])
def test_a_run_goes_on_from_a_checkpoint(
    kind: Any, first: str, second: str, tmp_path: Path
) -> None:
    unbroken = run(kind, "cpu", tmp_path / "whole", epochs=4)
    run(kind, first, tmp_path / "half", epochs=2)

    resumed = run(kind, second, tmp_path / "rest", epochs=4, resume=tmp_path / "half/last.ckpt")

    torch.testing.assert_close(resumed.state_dict(), unbroken.state_dict(), rtol=1e-6, atol=1e-7)


def test_a_checkpoint_holds_the_optimizer_as_torch_keeps_it(tmp_path: Path) -> None:
    run(Classifier, "ipu", tmp_path, epochs=1)

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)

    states = saved["optimizer_states"][0]["state"]
    assert len(states) == 4
    assert {"step", "exp_avg", "exp_avg_sq"} == set(states[0])
    assert float(states[0]["step"]) == 6


class Killed(Exception):
    pass


class KillAt(pl.Callback):
    """Saves a checkpoint after a batch, then dies."""

    def __init__(self, batch: int, path: Path) -> None:
        self.batch, self.path = batch, path

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, i: int) -> None:
        if trainer.current_epoch == 1 and i == self.batch:
            trainer.save_checkpoint(self.path)
            raise Killed


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_that_died_within_an_epoch_goes_on_to_the_same_bits(
    accumulate: int, devices: int, tmp_path: Path
) -> None:
    def start(callbacks: list[Any]) -> tuple[Any, pl.Trainer]:
        pl.seed_everything(3, verbose=False)
        trainer = pl.Trainer(
            accelerator="ipu",
            devices=devices,
            max_epochs=3,
            accumulate_grad_batches=accumulate,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        return Dropout(), trainer

    unbroken, trainer = start([])
    trainer.fit(unbroken, loader(40, 4, shuffle=True))
    killed, trainer = start([KillAt(3, tmp_path / "mid.ckpt")])
    with pytest.raises(Killed):
        trainer.fit(killed, loader(40, 4, shuffle=True))

    resumed, trainer = start([])
    torch.manual_seed(99)  # a new process has drawn other numbers
    trainer.fit(resumed, loader(40, 4, shuffle=True), ckpt_path=tmp_path / "mid.ckpt")

    torch.testing.assert_close(resumed.state_dict(), unbroken.state_dict(), rtol=0, atol=0)


def test_the_position_in_a_checkpoint_compares_with_plain_equality(tmp_path: Path) -> None:
    run(Classifier, "ipu", tmp_path, epochs=1)

    first, second = (torch.load(tmp_path / "last.ckpt", weights_only=True) for _ in range(2))

    assert first["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["batches"] == 6
    assert first["loops"] == second["loops"]
