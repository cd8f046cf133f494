"""Lightning's tools around a fit: command line, tuner, monitors, loggers, bars."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from tests.lightning.models import Classifier, loader

import pantile.lightning
from pantile.lightning import IPUStrategy

pytestmark = pytest.mark.usefixtures("reference")
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def test_the_command_line_takes_accelerator_and_strategy() -> None:
    common = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=4"]
    common += ["--trainer.limit_val_batches=1", "--trainer.logger=false"]
    asked = ["--trainer.accelerator=ipu", "--trainer.strategy=pantile.lightning.IPUStrategy"]
    asked += ["--trainer.strategy.device_iterations=2", "--trainer.devices=2"]
    cli = LightningCLI(
        BoringModel, BoringDataModule, run=False, save_config_callback=None, args=common + asked
    )

    cli.trainer.fit(cli.model, cli.datamodule)

    assert isinstance(cli.trainer.strategy, IPUStrategy)
    assert cli.trainer.strategy.optimizer_updates == 2 * cli.trainer.global_step == 8


def test_a_data_module_serves_every_stage() -> None:
    limits = {f"limit_{stage}_batches": 2 for stage in ("train", "val", "test", "predict")}
    trainer = pl.Trainer(accelerator="ipu", devices=1, max_epochs=1, **limits, **QUIET)
    model, data = BoringModel(), BoringDataModule()

    trainer.fit(model, data)
    (validated,) = trainer.validate(model, data, verbose=False)
    (tested,) = trainer.test(model, data, verbose=False)
    predicted = trainer.predict(model, data)

    assert (validated, tested) == ({}, {})
    assert len(predicted) == 2


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluation_logs_what_the_cpu_logs(stage: str) -> None:
    model = Classifier()

    def evaluate(accelerator: str) -> Any:
        trainer = pl.Trainer(accelerator=accelerator, devices=1, **QUIET)
        return getattr(trainer, stage)(model, loader(10, 4), verbose=False)

    assert evaluate("ipu") == evaluate("cpu")


def test_the_tuner_suggests_the_rate_it_suggests_on_the_cpu() -> None:
    class WithRate(BoringModel):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 1e-3

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), self.lr)

    def suggestion(accelerator: str) -> Any:
        pl.seed_everything(1, verbose=False)
        trainer = pl.Trainer(accelerator=accelerator, devices=1, max_epochs=2, **QUIET)
        return Tuner(trainer).lr_find(WithRate(), num_training=20).suggestion()

    assert suggestion("ipu") == pytest.approx(suggestion("cpu"))


def test_the_tuner_finds_the_batch_size_it_finds_on_the_cpu() -> None:
    class Sized(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2

        def train_dataloader(self) -> Any:
            return loader(24, self.batch_size)

        def val_dataloader(self) -> Any:
            return loader(8, 4)

    def tuned(accelerator: str) -> tuple[int | None, Any]:
        pl.seed_everything(1, verbose=False)
        module = Sized()
        trainer = pl.Trainer(accelerator=accelerator, devices=1, max_epochs=1, **QUIET)
        return Tuner(trainer).scale_batch_size(module, max_trials=2), module.state_dict()

    (mine, weights), (theirs, expected) = tuned("ipu"), tuned("cpu")

    assert mine == theirs == 4
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_a_csv_file_holds_every_step(tmp_path: Path) -> None:
    trainer = pl.Trainer(
        accelerator="ipu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=1,
        **{**QUIET, "logger": CSVLogger(tmp_path, name="", version="")},
    )

    trainer.fit(Classifier(), loader(), loader(8))

    with (tmp_path / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["train_step"]]) == 12
    assert len([row for row in rows if row["val"]]) == 2


def test_the_progress_bar_shows_logged_values(capsys: pytest.CaptureFixture[str]) -> None:
    bar = TQDMProgressBar()
    arguments = {**QUIET, "enable_progress_bar": True}
    trainer = pl.Trainer(accelerator="ipu", devices=1, max_epochs=1, callbacks=[bar], **arguments)

    trainer.fit(Classifier(), loader())

    assert "train_step=" in capsys.readouterr().out
    assert set(bar.get_metrics(trainer, trainer.lightning_module)) >= {"train_step", "train_epoch"}


def test_a_function_is_called_on_the_host_at_every_step() -> None:
    seen: list[float] = []

    class Tells(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.trainer.strategy.host_call(lambda value: seen.append(float(value)), loss)
            return loss

    trainer = pl.Trainer(accelerator="ipu", devices=1, max_epochs=1, **QUIET)
    trainer.fit(Tells(), loader())

    assert len(seen) == 6
    assert len(set(seen)) == 6


def test_the_strategy_explains_itself() -> None:
    strategy = IPUStrategy()
    trainer = pl.Trainer(
        accelerator="ipu",
        devices=1,
        strategy=strategy,
        accumulate_grad_batches=2,
        max_epochs=1,
        **QUIET,
    )
    told: list[str] = []

    class Asks(Classifier):
        def on_train_end(self) -> None:
            told.append(strategy.explain())

    trainer.fit(Asks(), loader())

    assert told == [
        "split steps because of accumulate_grad_batches=2\n"
        "training_step (gradients): float32[4, 8], int64[4]"
    ]


def test_profilers_show_the_compiled_programs_next_to_the_hooks() -> None:
    profiler = pantile.lightning.IPUProfiler()
    trainer = pl.Trainer(accelerator="ipu", devices=1, max_epochs=2, profiler=profiler, **QUIET)
    trainer.fit(Classifier(), loader(), loader(8))

    text = profiler.summary()
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    training = next(row for row in rows if row[0] == "training_step (fused)")
    validation = next(row for row in rows if row[0] == "validation_step (inference)")
    assert training[1:4] == ["float32[4, 8], int64[4]", "reference", "12"]
    assert validation[1:4] == ["float32[4, 8], int64[4]", "reference", "2"]
    assert len(profiler.recorded_durations["[IPU]run training_step (fused)"]) == 12
    assert len(profiler.recorded_durations["[IPU]record training_step (fused)"]) == 1
    assert "on_train_epoch_end" in text
