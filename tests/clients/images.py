"""What the image models share: random pictures with labels, and a loss behind the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.clients.client import Batch
from torch import nn

CLASSES = 10


class Classifier(nn.Module):
    """Cross-entropy behind an image classifier; returns the loss and the logits."""

    def __init__(
        self, model: nn.Module, logits: Callable[[Any], torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._logits = logits

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, logits."""
        result = self.model(x)
        logits = result if self._logits is None else self._logits(result)
        return F.cross_entropy(logits, y), logits


def pictures(*size: int, batch: int = 2, labels: tuple[int, ...] = ()) -> Callable[[], Batch]:
    """Batches of `size` pictures; `labels` is the shape of the target of one of them."""
    return lambda: {
        "x": torch.randn(batch, *size),
        "y": torch.randint(0, CLASSES, (batch, *labels)),
    }
