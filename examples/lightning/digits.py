"""A small classifier of random vectors, which the examples of this folder train."""

from typing import Any

import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning as L

FEATURES, CLASSES = 16, 4


def data(count: int = 512, batch_size: int = 8) -> DataLoader[Any]:
    """Vectors whose class is decided by a fixed linear map."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(FEATURES, CLASSES, generator=generator)
    x = torch.randn(count, FEATURES, generator=generator)
    y = (x @ weights).argmax(-1)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)


class Classifier(L.LightningModule):
    """An ordinary LightningModule: nothing in it is about IPUs."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)
