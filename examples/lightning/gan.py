"""Two networks, two optimizers, manual optimisation: the whole step is one program.

python gan.py
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import lightning as L


class Gan(L.LightningModule):
    """Learns to draw numbers around 3 from numbers around 0."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(1, 1)
        self.critic = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, real: torch.Tensor, batch_idx: int) -> None:
        first, second = self.optimizers()
        ones, zeros = torch.ones_like(real), torch.zeros_like(real)
        made = self.generator(torch.randn_like(real))

        self.toggle_optimizer(second)
        judged = F.binary_cross_entropy_with_logits(self.critic(real), ones)
        judged = judged + F.binary_cross_entropy_with_logits(self.critic(made.detach()), zeros)
        second.zero_grad()
        self.manual_backward(judged)
        second.step()
        self.untoggle_optimizer(second)

        self.toggle_optimizer(first)
        fooled = F.binary_cross_entropy_with_logits(self.critic(made), ones)
        first.zero_grad()
        self.manual_backward(fooled)
        self.clip_gradients(first, gradient_clip_val=1.0)
        first.step()
        self.untoggle_optimizer(first)
        self.log_dict({"critic": judged, "generator": fooled})

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.Adam(self.generator.parameters(), 0.02),
            torch.optim.Adam(self.critic.parameters(), 0.02),
        )


def main() -> None:
    L.seed_everything(1)
    real = 3 + 0.1 * torch.randn(512, 1)
    model = Gan()
    trainer = L.Trainer(
        accelerator="ipu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(real, batch_size=16, shuffle=True))  # type: ignore[arg-type]
    with torch.no_grad():
        drawn = model.generator(torch.randn(1000, 1)).mean()
    print(f"draws numbers around {float(drawn):.1f} after {trainer.global_step} updates")


if __name__ == "__main__":
    main()
