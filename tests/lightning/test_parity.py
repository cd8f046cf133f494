"""Every feature of Lightning gives on software IPUs what it gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import callbacks as cb
from lightning.pytorch.loggers import Logger
from tests.lightning import models
from tests.lightning.models import Classifier, Optimizer, loader
from torch.optim import LBFGS, SGD, AdamW, NAdam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

import pantile.lightning

pytestmark = pytest.mark.usefixtures("reference")


class Everything(Logger):
    """Keeps all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int | None, dict[str, float]]] = []

    name = version = "kept"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Not compared."""


@dataclass
class Case:
    """A module, the Trainer's arguments, and the data."""

    module: Callable[[], Any] = Classifier
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[Any]] = list
    train: Callable[[], Any] = loader
    val: Callable[[], Any] = lambda: loader(10, 4)
    relative: float = 1e-6


class Epochs(cb.Callback):
    """A user's callback that sees gradients and weights."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self.norms.append(float(sum(p.grad.norm() for p in module.parameters())))
        module.log("from_callback", self.norms[-1])


class Unfreeze(cb.BaseFinetuning):
    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.net[0])

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.net[0], optimizer, lr=0.01)


class Pairs(torch.utils.data.Sampler[list[int]]):
    """A batch sampler of the user's own."""

    def __iter__(self) -> Any:
        yield from ([i, 23 - i, (i * 5) % 24] for i in range(8))

    def __len__(self) -> int:
        return 8


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from loader().dataset


CASES = {
    "logging": Case(),
    "metrics": Case(models.WithMetrics),
    "lists, dicts, counters and kept tensors": Case(models.WithLists),
    "batch_idx, epoch, step, rate, attribute": Case(
        lambda: _scheduled(models.WithNumbers(), StepLR, step_size=2, gamma=0.5)
    ),
    "hooks": Case(models.WithHooks),
    "hooks of callbacks": Case(callbacks=lambda: [Epochs()]),
    "clipping by norm": Case(trainer={"gradient_clip_val": 0.05}),
    "clipping by value": Case(
        trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    ),
    "clipping of one's own": Case(models.Clips),
    "scheduler by step": Case(
        lambda: Optimizer(
            partial(SGD, lr=0.1), partial(StepLR, step_size=3, gamma=0.3), interval="step"
        )
    ),
    "scheduler by epoch": Case(
        lambda: Optimizer(partial(SGD, lr=0.1), partial(CosineAnnealingLR, T_max=3))
    ),
    "one-cycle scheduler": Case(
        lambda: Optimizer(
            partial(SGD, lr=0.1, momentum=0.9),
            partial(OneCycleLR, max_lr=0.2, total_steps=18),
            interval="step",
        )
    ),
    "plateau scheduler": Case(
        lambda: Optimizer(
            partial(SGD, lr=0.5), partial(ReduceLROnPlateau, patience=0), monitor="val"
        ),
        {"max_epochs": 4},
    ),
    "accumulation": Case(trainer={"accumulate_grad_batches": 4}),
    "scheduled accumulation": Case(
        callbacks=lambda: [cb.GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})]
    ),
    "two optimizers by hand": Case(models.Gan),
    "accumulation by hand": Case(models.ManualAccumulation),
    "closures by hand": Case(models.Closures),
    "tied weights, hooks on them, a warm-up": Case(models.TiedAndHooked),
    "no optimizer": Case(models.NoOptimizer),
    "AdamW": Case(lambda: Optimizer(partial(AdamW, lr=0.01))),
    "NAdam": Case(lambda: Optimizer(partial(NAdam, lr=0.01))),
    "LBFGS": Case(lambda: Optimizer(partial(LBFGS, lr=0.1, max_iter=3)), relative=1e-5),
    "a step that returns None": Case(models.ReturnsNone),
    "early stopping": Case(
        lambda: Classifier(lr=2.0),
        {"max_epochs": 9},
        lambda: [cb.EarlyStopping("val", patience=0)],
    ),
    "checkpoints": Case(callbacks=lambda: [cb.ModelCheckpoint(".", monitor="val", save_top_k=2)]),
    "weight averaging": Case(
        callbacks=lambda: [cb.StochasticWeightAveraging(0.01, swa_epoch_start=1)],
        trainer={"max_epochs": 4},
    ),
    "weight averaging with batch norm": Case(
        models.BatchNorm,
        callbacks=lambda: [cb.StochasticWeightAveraging(0.01, swa_epoch_start=1)],
        trainer={"max_epochs": 4},
    ),
    "moving average": Case(callbacks=lambda: [cb.EMAWeightAveraging(decay=0.9)]),
    "fine-tuning": Case(callbacks=lambda: [Unfreeze()]),
    "freezing": Case(models.Frozen),
    "pruning": Case(callbacks=lambda: [cb.ModelPruning("l1_unstructured", amount=0.3)]),
    "rates and timer": Case(
        lambda: Optimizer(partial(SGD, lr=0.1), partial(StepLR, step_size=1, gamma=0.5)),
        callbacks=lambda: [cb.LearningRateMonitor("step"), cb.Timer()],
    ),
    "simple profiler": Case(trainer={"profiler": "simple"}),
    "limits": Case(trainer={"limit_train_batches": 3, "limit_val_batches": 0.5}),
    "overfitting": Case(trainer={"overfit_batches": 2}),
    "validation within an epoch": Case(trainer={"val_check_interval": 2}),
    "one batch": Case(trainer={"fast_dev_run": True}),
    "steps": Case(trainer={"max_steps": 7, "max_epochs": -1}),
    "batch sampler": Case(
        train=lambda: torch.utils.data.DataLoader(loader().dataset, batch_sampler=Pairs())
    ),
    "iterable data": Case(train=lambda: torch.utils.data.DataLoader(Stream(), batch_size=4)),
    "an incomplete batch": Case(train=partial(loader, 22)),
    "several loaders": Case(val=lambda: [loader(8), loader(12)]),
    "transfer hooks": Case(models.Transfers),
    "dropout": Case(models.Dropout),
    "batch norm": Case(models.BatchNorm),
    "bf16-mixed": Case(trainer={"precision": "bf16-mixed"}),
    "bf16-true": Case(trainer={"precision": "bf16-true"}),
    "16-true": Case(
        lambda: Optimizer(partial(SGD, lr=0.1)), trainer={"precision": "16-true"}, relative=1e-3
    ),
}


def _scheduled(module: Any, scheduler: Any, **settings: Any) -> Any:
    def configure() -> Any:
        optimizer = torch.optim.Adam(module.parameters(), 0.02)
        made = scheduler(optimizer, **settings)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, "interval": "step"}}

    module.configure_optimizers = configure
    return module


def fit(case: Case, accelerator: str, **more: Any) -> tuple[Any, pl.Trainer]:
    """Train one case."""
    pl.seed_everything(3, verbose=False)
    module = case.module()
    arguments = {"max_epochs": 3, **case.trainer, **more}
    callbacks = case.callbacks()
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=arguments.pop("devices", 1),
        logger=Everything(),
        callbacks=callbacks,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, cb.ModelCheckpoint) for c in callbacks),
        **arguments,
    )
    train, val = case.train(), case.val()
    trainer.fit(module, train, val)
    return module, trainer


def assert_same(mine: tuple[Any, pl.Trainer], theirs: tuple[Any, pl.Trainer], rtol: float) -> None:
    """Weights, everything that was logged, and all counters are equal."""
    (module, trainer), (other, reference) = mine, theirs
    assert trainer.global_step == reference.global_step
    assert trainer.current_epoch == reference.current_epoch
    got, want = module.state_dict(), other.state_dict()
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * 0.1)
    loggers = (trainer.logger, reference.logger)
    lines, expected = ([] if trainer.fast_dev_run else logger.lines for logger in loggers)
    assert [(step, list(line)) for step, line in lines] == [(s, list(line)) for s, line in expected]
    for (_, line), (_, other_line) in zip(lines, expected, strict=True):
        assert line == pytest.approx(other_line, rel=max(rtol, 1e-5), abs=1e-7)
    for optimizer, its in zip(trainer.optimizers, reference.optimizers, strict=True):
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([group["lr"] for group in its.param_groups])


@pytest.mark.parametrize("name", CASES)
def test_trains_to_what_the_cpu_trains_to(name: str) -> None:
    case = CASES[name]

    mine = fit(case, "ipu")

    assert type(mine[1].strategy).__name__ == "IPUStrategy"
    assert mine[1].strategy.statistics()["ipu.calls"] > 0
    assert_same(mine, fit(case, "cpu"), case.relative)


@pytest.mark.parametrize(
    "name",
    [
        "logging",
        "metrics",
        "lists, dicts, counters and kept tensors",
        pytest.param("batch_idx, epoch, step, rate, attribute", marks=pytest.mark.slow),
        "AdamW",
    ],
)
def test_split_steps_train_to_the_same(name: str) -> None:
    case = CASES[name]
    strategy = pantile.lightning.IPUStrategy(step_mode="split")

    assert_same(fit(case, "ipu", strategy=strategy), fit(case, "cpu"), case.relative)
