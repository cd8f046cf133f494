"""Split a LightningModule over two IPUs with PopTorch's blocks, with accumulation in the program.

python pipelining.py
"""

from typing import Any

import torch
import torch.nn.functional as F
from digits import Classifier, data

import lightning as L
import pantile.lightning
import poptorch


class Pipelined(Classifier):
    """The first layer is on IPU 0, the rest on IPU 1."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        with poptorch.Block("first", ipu_id=0):
            x = self.net[1](self.net[0](x))
        with poptorch.Block("second", ipu_id=1):
            loss = F.cross_entropy(self.net[2](x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


def main() -> None:
    L.seed_everything(1)
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(4)  # a pipeline wants several micro-batches in flight
    strategy = pantile.lightning.IPUStrategy(training_opts=options)
    trainer = L.Trainer(
        accelerator="ipu",
        devices=1,
        strategy=strategy,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Pipelined(), data())
    print(f"loss {trainer.callback_metrics['loss']:.2f}")
    print(f"{trainer.global_step} calls made {strategy.optimizer_updates} updates")


if __name__ == "__main__":
    main()
