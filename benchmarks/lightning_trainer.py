"""Lightning's Trainer on the CPU and on software IPUs, side by side in one process.

    python -m benchmarks.lightning_trainer [--steps 200] [--threads 1]

Three models: a CNN on MNIST-sized pictures, a small transformer, an MLP whose calls hold 16
device iterations. The second epoch is timed, so compilation is not; data are random. The ratio of
CPU time per batch is what counts: it depends little on who else uses the machine.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pantile.lightning import IPUStrategy

BATCH = 8


class Model(pl.LightningModule):
    """A network with a loss that is logged, trained by Adam."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


@dataclass(frozen=True)
class Workload:
    """What is trained, on what, and how many device iterations a call has."""

    name: str
    net: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    iterations: int = 1


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(64, 64),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


WORKLOADS = (
    Workload("CNN, batch 8", cnn, lambda n: torch.randn(n, 1, 28, 28)),
    Workload("transformer, batch 8", transformer, lambda n: torch.randint(64, (n, 16))),
    Workload("MLP, batch 8", mlp, lambda n: torch.randn(n, 32)),
    Workload("MLP, 16 device iterations", mlp, lambda n: torch.randn(n, 32), 16),
)


class Clock(pl.Callback):
    """CPU time of the last epoch."""

    seconds = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        self._begin = time.process_time()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.seconds = time.process_time() - self._begin


def milliseconds(workload: Workload, steps: int, **arguments: Any) -> float:
    """CPU time of one batch of the loader, in the second epoch."""
    pl.seed_everything(1, verbose=False)
    count = steps * BATCH
    samples = TensorDataset(workload.inputs(count), torch.randint(10, (count,)))
    clock = Clock()
    trainer = pl.Trainer(
        devices=1,
        max_epochs=2,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(Model(workload.net()), DataLoader(samples, batch_size=BATCH))
    return clock.seconds / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="batches of an epoch")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    print("| model | CPU, ms | IPU, ms | ratio |\n|---|---|---|---|")
    for workload in WORKLOADS:
        cpu = milliseconds(workload, arguments.steps, accelerator="cpu")
        strategy = IPUStrategy(device_iterations=workload.iterations)
        ipu = milliseconds(workload, arguments.steps, accelerator="ipu", strategy=strategy)
        print(f"| {workload.name} | {cpu:.2f} | {ipu:.2f} | {cpu / ipu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
