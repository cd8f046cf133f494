"""One model in five precisions; mixed half scales its loss as on GPUs.

python precision.py
"""

import torch
from digits import Classifier, data

import lightning as L

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")


class WithSGD(Classifier):
    """The same model, for pure half."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(precision: str) -> float:
    """The loss after two epochs."""
    L.seed_everything(1, verbose=False)
    # Adam's epsilon of 1e-8 is zero in half.
    model = WithSGD() if precision == "16-true" else Classifier()
    trainer = L.Trainer(
        accelerator="ipu",
        devices=1,
        precision=precision,  # type: ignore[arg-type]
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, data(128))
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    scale = "" if scaler is None else f", loss scale {scaler.get_scale():.0f}"
    loss = float(trainer.callback_metrics["loss_epoch"])
    print(f"{precision:10} loss {loss:.2f}{scale}")
    return loss


if __name__ == "__main__":
    for name in PRECISIONS:
        train(name)
