"""Small LightningModules that use what users use, for runs on the CPU and on software IPUs."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 8, 3


def loader(count: int = 24, batch_size: int = 4, **kwargs: Any) -> DataLoader[Any]:
    """The same random samples, whatever was drawn before."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **kwargs)


class Classifier(pl.LightningModule):
    """A small network that logs its loss in training and validation."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.net = nn.Sequential(nn.Linear(FEATURES, 12), *self.middle(), nn.Linear(12, CLASSES))

    def middle(self) -> list[nn.Module]:
        return [nn.Tanh()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(x)
        return result

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val" if dataloader_idx == 0 else f"val_{dataloader_idx}", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.settings.get("lr", 0.02))


class WithMetrics(Classifier):
    """Metrics of all kinds: called, updated, collected, logged as objects and as values."""

    def __init__(self) -> None:
        super().__init__()
        self.acc = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)
        self.auroc = torchmetrics.AUROC("multiclass", num_classes=CLASSES)
        self.several = torchmetrics.MetricCollection(
            {
                "precision": torchmetrics.Precision("multiclass", num_classes=CLASSES),
                "recall": torchmetrics.Recall("multiclass", num_classes=CLASSES),
            }
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out, y)
        value = self.acc(out, y)
        self.log("acc_step", value)
        self.log("error", 1 - value)
        self.log("acc", self.acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self(x).softmax(-1)
        self.auroc.update(out, y)
        self.log_dict(self.several(out, y))

    def on_validation_epoch_end(self) -> None:
        self.log("auroc", self.auroc.compute())
        self.auroc.reset()


class WithLists(Classifier):
    """Keeps outputs for epoch-end hooks, counts, remembers a tensor, returns a dict."""

    steps = 0
    shared: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []
        self.table: dict[str, Any] = {}
        self.seen = 0
        self.hidden: Any = torch.zeros(12)
        self.called = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.hidden = 0.5 * self.hidden + 0.5 * self.net[0](x).mean(0).detach()
        loss = loss + 0.1 * (self.net[0](x) - self.hidden).pow(2).mean()
        self.kept.append(loss.detach())
        self.table["last"] = loss.detach()
        self.seen += len(x)
        self.called = True
        self.steps += 1
        self.shared.append(batch_idx)
        return {"loss": loss, "logits": self(x).detach(), "seen": self.seen}

    def on_train_epoch_end(self) -> None:
        self.log("mean_of_kept", torch.stack(self.kept).mean())
        self.log("seen", float(self.seen))
        self.log("steps", float(self.steps + sum(self.shared)))
        self.shared.clear()
        self.kept.clear()


class WithNumbers(Classifier):
    """Branches on batch_idx; uses epoch, step, learning rate and an attribute that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if batch_idx % 3 == 0:
            loss = loss * 2
        loss = loss * (1 + self.global_step / 100) + self.current_epoch * 0.01
        rate = self.optimizers().param_groups[0]["lr"]
        self.log("rate", rate)
        self.log("index", torch.tensor(batch_idx).float(), reduce_fx=max)
        self.log(f"loss_{batch_idx % 2}", loss)
        if self.trainer.is_last_batch:
            self.log("at_the_end", loss)
        return loss * self.beta

    def on_train_epoch_start(self) -> None:
        self.beta *= 0.9


class WithHooks(Classifier):
    """Looks at gradients, and changes them, where Lightning lets it."""

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.log("before_backward", loss)

    def on_after_backward(self) -> None:
        self.log("norm", torch.stack([p.grad.norm() for p in self.parameters()]).norm())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for p in self.parameters():
            p.grad.mul_(0.5)


class Dropout(Classifier):
    def middle(self) -> list[nn.Module]:
        return [nn.Tanh(), nn.Dropout(0.3)]


class BatchNorm(Classifier):
    def middle(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(12), nn.Tanh()]

    def configure_optimizers(self) -> Any:
        # A bias before batch norm has a gradient of rounding errors, which Adam would magnify.
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Optimizer(Classifier):
    """With any optimizer and scheduler."""

    def __init__(self, optimizer: Any, scheduler: Any = None, **settings: Any) -> None:
        super().__init__()
        self.make = (optimizer, scheduler, settings)

    def configure_optimizers(self) -> Any:
        optimizer, scheduler, settings = self.make
        made = optimizer(self.parameters())
        if scheduler is None:
            return made
        return {"optimizer": made, "lr_scheduler": {"scheduler": scheduler(made), **settings}}


class Gan(pl.LightningModule):
    """Two optimizers, toggled, clipped, with a scheduler stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, FEATURES))
        self.d = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        z, ones = x[:, :4] * 0.5, torch.ones(len(x), 1)
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        fake = F.binary_cross_entropy_with_logits(self.d(self.g(z)), ones)
        first.zero_grad()
        self.manual_backward(fake)
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        real = F.binary_cross_entropy_with_logits(self.d(x), ones)
        made = F.binary_cross_entropy_with_logits(self.d(self.g(z).detach()), 0 * ones)
        second.zero_grad()
        self.manual_backward((real + made) / 2)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"g": fake, "d": real + made})
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.g.parameters(), 0.01, betas=(0.5, 0.9))
        second = torch.optim.SGD(self.d.parameters(), 0.05, momentum=0.9)
        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1, 0.5)]


class ManualAccumulation(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = self.loss(batch) / 2
        self.manual_backward(loss)
        self.log("train", loss)
        if (batch_idx + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


class ReturnsNone(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


class Clips(Classifier):
    def configure_gradient_clipping(self, optimizer: Any, **kwargs: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="value")


class Transfers(Classifier):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] + 1, batch[1]]

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 2, batch[1]]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] - 1, batch[1]]


class Frozen(Classifier):
    """One layer is frozen in the first epoch."""

    def on_train_epoch_start(self) -> None:
        self.net[0].requires_grad_(self.current_epoch > 0)


class Closures(Classifier):
    """Optimises by closures, on two parts of the model, with `toggle_model`."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()

        def closure() -> torch.Tensor:
            loss = self.loss(batch)
            first.zero_grad()
            self.manual_backward(loss)
            return loss

        first.step(closure=closure)
        with second.toggle_model():
            loss = 2 * self.loss(batch)
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
        self.log("train", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.SGD(self.net[0].parameters(), 0.05, momentum=0.9),
            torch.optim.RMSprop(self.net[2].parameters(), 0.01),
        )


class TiedAndHooked(Classifier):
    """One weight under two names, a hook on its gradient, a warm-up in `optimizer_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Linear(FEATURES, 12)
        self.twin.weight = self.net[0].weight

    def training_step(self, batch: Any) -> Any:
        return self.loss(batch) + 0.1 * self.twin(batch[0]).pow(2).mean()

    def on_train_start(self) -> None:
        self.twin.weight.register_hook(lambda gradient: gradient * 0.5)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.001 * (self.trainer.global_step + 1)
        optimizer.step(closure=closure)


class NoOptimizer(Classifier):
    def configure_optimizers(self) -> Any:
        return None
