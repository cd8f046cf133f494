"""Checkpoints are Lightning's own: written here, read there, and the run goes on as if unbroken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.lightning.models import Classifier, Gan, loader

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


@pytest.mark.parametrize("kind", [Classifier, Gan])
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
