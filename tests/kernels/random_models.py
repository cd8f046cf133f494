"""Random small models of pictures, sequences and rows: layers put together by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS: list[Callable[..., Any]] = [
    F.relu,
    F.gelu,
    F.silu,
    torch.tanh,
    torch.sigmoid,
    F.elu,
    F.leaky_relu,
    F.softplus,
    F.hardswish,
    F.relu6,
    F.mish,
]


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        """Call it."""
        return self.function(*given)


class Residual(nn.Module):
    """x + f(x), or the two side by side, cut to the old width."""

    def __init__(self, inner: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With the way around."""
        return x + self.scale * self.inner(x)


class Gate(nn.Module):
    """Half of the values say how much of the other half goes on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """a sigmoid(b)."""
        a, b = self.both(x).chunk(2, -1)
        return a * torch.sigmoid(b)


class Attention(nn.Module):
    """Heads, causal or not, by torch's function or written out."""

    def __init__(self, width: int, heads: int, causal: bool, written_out: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.written_out = heads, causal, written_out
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the rows of a sequence."""
        rows, steps, width = x.shape
        parts = self.into(x).split(width, 2)
        q, k, v = (p.view(rows, steps, self.heads, -1).transpose(1, 2) for p in parts)
        if self.written_out:
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            if self.causal:
                mask = torch.ones(steps, steps, dtype=torch.bool).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(rows, steps, width))


class LastOfLSTM(nn.Module):
    """A recurrent layer; all its steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        out, _ = self.layer(x)
        return out


class Model(nn.Module):
    """Layers, a head, and a loss."""

    def __init__(self, layers: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.loss = layers, loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        """What poptorch wants: outputs and loss."""
        out = self.layers(x)
        return out, self.loss(out, target)


def activation(rng: random.Random) -> nn.Module:
    """One of many."""
    return Apply(rng.choice(ACTIVATIONS))


def picture_layers(rng: random.Random, channels: int, side: int) -> Iterator[nn.Module]:
    """Convolutions, norms, pools; then one row for each picture."""
    for _ in range(rng.randrange(1, 4)):
        filters = rng.choice([3, 4, 8, 16, 20])
        size = rng.choice([1, 3, 3, 5])
        stride = rng.choice([1, 1, 2])
        yield nn.Conv2d(channels, filters, size, stride, size // 2, bias=rng.random() < 0.7)
        side = (side - 1) // stride + 1
        channels = filters
        if rng.random() < 0.5:
            yield rng.choice([nn.BatchNorm2d(channels), nn.GroupNorm(1, channels)])
        yield activation(rng)
        if rng.random() < 0.4:
            inner = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), activation(rng))
            yield Residual(inner, rng.choice([1.0, 0.5]))
        if side >= 4 and rng.random() < 0.5:
            yield rng.choice([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1)])
            side = (side + 1) // 2 if side % 2 else side // 2
    if rng.random() < 0.5:
        yield Apply(lambda x: x.mean((2, 3)))
    else:
        yield Apply(lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1))
    yield nn.Linear(channels, 5)


def sequence_layers(rng: random.Random, width: int) -> Iterator[nn.Module]:
    """Attention, gates, recurrent layers; then one row for each sequence."""
    for _ in range(rng.randrange(1, 3)):
        kind = rng.randrange(4)
        if kind == 0:
            inner: nn.Module = Attention(width, 2, rng.random() < 0.5, rng.random() < 0.5)
            yield Residual(nn.Sequential(nn.LayerNorm(width), inner), 1.0)
        elif kind == 1:
            wide = nn.Sequential(nn.Linear(width, 2 * width), activation(rng))
            inner = nn.Sequential(nn.LayerNorm(width), wide, nn.Linear(2 * width, width))
            yield Residual(inner, 1.0)
        elif kind == 2:
            yield LastOfLSTM(width)
        else:
            yield Gate(width)
    how = rng.randrange(3)
    yield Apply([lambda x: x.mean(1), lambda x: x[:, -1], lambda x: x.amax(1)][how])
    yield nn.Linear(width, 5)


def row_layers(rng: random.Random, width: int) -> Iterator[nn.Module]:
    """Linear layers, norms, gates and ways around."""
    for _ in range(rng.randrange(1, 4)):
        other = rng.choice([1, 3, 7, 16, 17, 33])
        yield nn.Linear(width, other, bias=rng.random() < 0.8)
        width = other
        if rng.random() < 0.4 and width > 1:
            yield rng.choice([nn.BatchNorm1d(width), nn.LayerNorm(width)])
        yield activation(rng)
        if rng.random() < 0.3:
            yield Residual(nn.Sequential(nn.Linear(width, width), activation(rng)), 0.5)
        if rng.random() < 0.3:
            yield Gate(width)
    if rng.random() < 0.3:
        yield Apply(lambda x: torch.cat([x, x.softmax(-1) * 2], -1))
        width *= 2
    yield nn.Linear(width, 5)


def loss_of(rng: random.Random) -> tuple[Callable[..., Any], bool]:
    """A loss, and whether its targets are classes."""
    return rng.choice(
        [
            (F.cross_entropy, True),
            (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), True),
            (lambda x, t: F.nll_loss(x.log_softmax(-1), t), True),
            (F.mse_loss, False),
            (F.smooth_l1_loss, False),
            (lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), False),
        ]
    )


def random_model(seed: int) -> tuple[Model, torch.Tensor, torch.Tensor]:
    """A model, its input, and targets."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    rows = rng.choice([1, 2, 3, 5, 8]) + 1
    kind = rng.choice(["pictures", "pictures", "sequences", "words", "rows"])
    loss, classes = loss_of(rng)
    if kind == "pictures":
        channels, side = rng.choice([1, 3]), rng.choice([7, 8, 12])
        x = torch.randn(rows, channels, side, side)
        layers = list(picture_layers(rng, channels, side))
    elif kind == "rows":
        width = rng.choice([1, 4, 13, 32])
        x = torch.randn(rows, width)
        layers = list(row_layers(rng, width))
    else:
        steps, width = rng.choice([1, 3, 6, 17]), rng.choice([4, 8, 18])
        layers = list(sequence_layers(rng, width))
        x = torch.randn(rows, steps, width)
        if kind == "words":
            layers.insert(0, nn.Embedding(11, width))
            x = torch.randint(0, 11, (rows, steps))
    target = torch.randint(0, 5, (rows,)) if classes else torch.randn(rows, 5)
    return Model(nn.Sequential(*layers), loss), x, target


def random_optimizer(seed: int, parameters: Any) -> torch.optim.Optimizer:
    """SGD or Adam in one of their forms; Adam's eps is large, so that noise stays noise."""
    kind = random.Random(~seed).randrange(4)
    if kind == 0:
        return torch.optim.SGD(parameters, lr=0.05)
    if kind == 1:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    if kind == 2:
        return torch.optim.Adam(parameters, lr=0.01, eps=1e-2)
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-2, weight_decay=0.1)
