"""The model, in a module of its own: both scripts import it by name."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    """Says which of three points a point of the plane is nearest to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, points: torch.Tensor, labels: torch.Tensor | None = None):
        scores = self.layers(points)
        return scores if labels is None else (scores, F.cross_entropy(scores, labels))


CENTRES = torch.tensor([[0.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random points and the number of the nearest centre."""
    points = torch.randn(count, 2)
    return points, torch.cdist(points, CENTRES).argmin(dim=1)
