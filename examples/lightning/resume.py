"""Stop a run in the middle of an epoch, go on, and arrive at the same weights.

python resume.py
"""

from pathlib import Path
from typing import Any

import torch
from digits import Classifier, data

import lightning as L

CHECKPOINT = Path("stopped.ckpt")


class Stop(L.Callback):
    """Saves a checkpoint after the fifth batch of the second epoch, and ends the run."""

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, *given: Any) -> None:
        if trainer.current_epoch == 1 and given[2] == 4:
            trainer.save_checkpoint(CHECKPOINT)
            trainer.should_stop = True


def train(callbacks: list[L.Callback], resume: Path | None = None) -> Classifier:
    L.seed_everything(1, verbose=False)
    model = Classifier()
    trainer = L.Trainer(
        accelerator="ipu",
        devices=2,
        max_epochs=3,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, data(256), ckpt_path=resume)
    return model


def main() -> None:
    whole = train([])
    train([Stop()])
    resumed = train([], resume=CHECKPOINT)
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in pairs)
    print("the same weights" if same else "other weights")


if __name__ == "__main__":
    main()
