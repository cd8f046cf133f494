"""Train on four software IPUs: the only line about them is `accelerator="ipu", devices=4`.

python first_run.py
"""

from digits import Classifier, data

import lightning as L


def main() -> None:
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="ipu",
        devices=4,  # four replicas: each call takes four batches of the loader
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(lr=0.02), data(), data(64))
    metrics = trainer.callback_metrics
    print(f"accuracy {metrics['accuracy']:.2f}, validation loss {metrics['val_loss']:.2f}")
    print(f"{trainer.global_step} updates of {4 * 8} samples")


if __name__ == "__main__":
    main()
