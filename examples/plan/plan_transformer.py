"""Where to cut a transformer, and how fast it would be: no IPU, no training.

python examples/plan/plan_transformer.py [layers] [IPUs]
pantile plan examples/plan/plan_transformer.py:make --ipus 16 --batch 4096
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pantile.planning import annotations_of, plans, table

WIDTH, HEADS, LENGTH, WORDS, MICRO_BATCH = 512, 8, 128, 8192, 8


class Layer(nn.Module):
    """Attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, -1)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) * (width // HEADS) ** -0.5
        mixed = torch.matmul(scores.softmax(-1), v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Words in, a score for each next word out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def make(layers: int = 12) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The model in half precision and one micro-batch."""
    ids = torch.zeros(MICRO_BATCH, LENGTH, dtype=torch.int64)
    return Transformer(layers).half(), (ids, ids)


def main() -> None:
    """Print the best plan, the next best, and the lines to paste."""
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    ipus = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    model, inputs = make(layers)
    found = plans(model, inputs, ipus=ipus, batch=4096, optimizer="adam", progress=True)
    best = found[0]
    print(table(best))
    other = next((p for p in found if len(p.stages) != len(best.stages)), None)
    if other is not None:
        print(f"\nWith another number of stages:\n{table(other)}")
    print(f"\nPaste after the model is made:\n{annotations_of(best)}")


if __name__ == "__main__":
    main()
