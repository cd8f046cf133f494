"""What steps keep outside of tensors of the model is, after each step, what it is on the CPU."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from tests.lightning.models import FEATURES, Classifier, Gan
from tests.lightning.test_parity import Case, assert_same, fit
from torch import nn

from pantile.lightning import IPUStrategy

pytestmark = pytest.mark.usefixtures("reference")


class Keeps(Classifier):
    """A step that keeps things; `kept` is what it has in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = {}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.keep(loss, batch_idx)
        return loss

    keep: Callable[..., None]  # what a test is about


class Containers(Keeps):
    shared: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.shared.update(losses=[])
        self.kept = {
            "inner": {"losses": []},
            "by name": defaultdict(list),
            "counts": Counter(),
            "seen": set(),
            "last": deque(maxlen=2),
            "object": SimpleNamespace(total=0.0, losses=[]),
            "shared": self.shared,
        }

    def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
        kept, value = self.kept, loss.detach()
        kept["inner"]["losses"].append(value)
        kept["by name"][f"{batch_idx}"].append(value)
        kept["counts"]["steps"] += 1
        kept["seen"].add(batch_idx)
        kept["last"].append(value)
        kept["object"].total += 1.5
        kept["object"].losses.append(value)
        self.shared["losses"].append(value)


class NewListEachEpoch(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.kept = {"epochs": []}
        self.losses: list[Any] = []

    def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
        self.losses.append(loss.detach())

    def on_train_epoch_end(self) -> None:
        self.kept["epochs"].append(torch.stack(self.losses))
        self.losses = []


class Values(Keeps):
    """Values of tensors, as numbers and arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.kept = {"rounded": [], "arrays": []}

    def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
        self.total += loss.item()
        self.log("total", self.total)
        self.kept["rounded"].append(round(loss.item(), 2))
        self.kept["arrays"].append(loss.detach().cpu().numpy())
        self.kept["total"] = self.total


class Settings(Keeps):
    """Settings that hooks change."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"weight": 1.0})
        self.config = SimpleNamespace(weight=1.0)
        self.table = {"weight": 1.0}
        self.factor = torch.ones(())
        self.count = 0

    def loss(self, batch: Any) -> torch.Tensor:
        weight = self.hparams.weight * self.config.weight * self.table["weight"]
        return super().loss(batch) * weight * self.factor

    def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
        """Nothing."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.hparams.weight *= 1.1
        self.config.weight *= 0.9
        self.table["weight"] *= 1.05
        self.factor = self.factor * 0.98
        self.count += 1


class Hidden(Classifier):
    """A state of several tensors that goes from step to step, and is reset by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, FEATURES)
        self.hidden: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, hidden = self.rnn(x, self.hidden)
        self.hidden = tuple(part.detach() for part in hidden)
        return super().forward(out)

    def on_train_epoch_start(self) -> None:
        self.hidden = None

    on_validation_epoch_start = on_train_epoch_start


class LooksAtMetrics(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weight = self.trainer.callback_metrics.get("val", torch.ones(()))
        return self.loss(batch) * (1 + weight)


class BackwardHooks(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.kept = {"gradients": []}
        self.net.register_full_backward_hook(
            lambda _, inputs, outputs: self.kept["gradients"].append(outputs[0].abs().sum())
        )

    def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
        """The hook does."""


def plain(value: Any) -> Any:
    """Numbers to compare."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return [plain(item) for item in value]
    if isinstance(value, set):
        return sorted(value)
    return plain(vars(value)) if isinstance(value, SimpleNamespace) else value


@pytest.mark.parametrize(
    "kind",
    [Containers, NewListEachEpoch, Values, Settings, Hidden, LooksAtMetrics, BackwardHooks],
    ids=lambda kind: kind.__name__,
)
def test_what_a_step_keeps_and_reads_is_what_it_is_on_the_cpu(kind: Any) -> None:
    mine, theirs = fit(Case(kind), "ipu"), fit(Case(kind), "cpu")

    assert_same(mine, theirs, 1e-6)
    kept, expected = (plain(getattr(module, "kept", None)) for module, _ in (mine, theirs))
    torch.testing.assert_close(kept, expected, rtol=1e-6, atol=1e-7)


def test_a_list_of_an_enclosing_function_gets_the_value_of_each_step() -> None:
    losses: list[torch.Tensor] = []

    class Encloses(Keeps):
        def keep(self, loss: torch.Tensor, batch_idx: int) -> None:
            losses.append(loss.detach())

    fit(Case(Encloses), "ipu")
    mine = [float(loss) for loss in losses]
    losses.clear()
    fit(Case(Encloses), "cpu")

    assert mine == [float(loss) for loss in losses]


def test_numbers_that_hooks_change_make_no_new_program_at_each_step() -> None:
    strategy = IPUStrategy()
    told: list[str] = []

    class Tells(Settings):
        def on_train_end(self) -> None:
            told.append(strategy.explain())

    fit(Case(Tells), "ipu", strategy=strategy)

    assert told[0].count("training_step") == 2  # the second has them as inputs, for 17 steps


def test_split_steps_train_an_lstm() -> None:
    mine = fit(Case(Hidden), "ipu", strategy=IPUStrategy(step_mode="split"))

    assert_same(mine, fit(Case(Hidden), "cpu"), 1e-6)


def test_a_logger_is_called_with_the_values_of_each_step() -> None:
    class Logs(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            if isinstance(self.logger, CSVLogger):
                values = {"own": loss.detach()}
                self.logger.log_metrics(values, step=self.global_step)
            return loss

    rows = []
    for accelerator in ("ipu", "cpu"):
        logger = CSVLogger(accelerator)
        pl.seed_everything(3, verbose=False)
        trainer = pl.Trainer(
            accelerator=accelerator,
            devices=1,
            max_epochs=1,
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        case = Case(Logs)
        trainer.fit(case.module(), case.train())
        rows.append(Path(logger.experiment.metrics_file_path).read_text())

    assert rows[0] == rows[1]
    assert rows[0].count("\n") == 7


class Watches(Callback):
    """Looks at gradients while a step optimises by hand."""

    def __init__(self) -> None:
        self.norms: list[Any] = []
        self.count = 0

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self.norms += [p.grad.norm() for p in module.parameters() if p.grad is not None]
        self.count += 1

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.log("from_callback", self.norms[-1], on_step=True, on_epoch=True)


class CountsSteps(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        self.log("steps", 1.0 * self.global_step)


def test_hooks_of_callbacks_and_counters_follow_a_step_by_hand() -> None:
    seen = []
    results = []
    for accelerator in ("ipu", "cpu"):
        watches = Watches()
        results.append(fit(Case(CountsSteps, callbacks=lambda: [watches]), accelerator))  # noqa: B023
        seen.append([float(norm) for norm in watches.norms])
        assert watches.count == 36  # 18 steps, two optimizers

    assert_same(*results, 1e-5)
    assert seen[0] == pytest.approx(seen[1], rel=1e-5)


@dataclass
class Output:
    loss: torch.Tensor
    extra: dict[str, Any]


def test_objects_that_a_step_returns_hold_the_values_of_the_run() -> None:
    class Predicts(Classifier):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return Output(self.loss(batch), {"rows": self(batch[0]), "index": batch_idx})

    found = []
    for accelerator in ("ipu", "cpu"):
        pl.seed_everything(3, verbose=False)
        case = Case(Predicts)
        trainer = pl.Trainer(
            accelerator=accelerator, devices=1, logger=False, enable_progress_bar=False
        )
        found.append(trainer.predict(case.module(), case.train()))

    for mine, theirs in zip(*found, strict=True):
        assert mine.extra["index"] == theirs.extra["index"]
        torch.testing.assert_close(mine.loss, theirs.loss)
        torch.testing.assert_close(mine.extra["rows"], theirs.extra["rows"])


def test_a_list_of_the_class_that_a_hook_replaces_by_one_of_its_own() -> None:
    class Rebinds(Classifier):
        outputs: ClassVar[list[list[Any]]] = [[], []]

        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.outputs[batch_idx % 2].append(1 + batch_idx)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.epochs.append(self.outputs)
            self.outputs = [[], []]  # type: ignore[misc]

    module, _ = fit(Case(Rebinds), "ipu")

    assert module.epochs == [[[1, 3, 5], [2, 4, 6]]] * 3
