"""Models with operators our kernels lack: called between kernels, or all left to Inductor.

    python -m benchmarks.segments
    python -m benchmarks.segments --threads 2 --models ridge,fourier --seconds 10

Each model is compiled both ways in one process, with an empty cache; then steps of both and of
eager PyTorch are timed in turns. Printed are the seconds of compilation, and the shortest steps.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import poptorch

Step = Callable[[], Any]
Data = tuple[torch.Tensor, torch.Tensor]


class Ridge(nn.Module):
    """A perceptron, and a regression on its features that is solved in every step."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (256, 512, 512, 64)
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        self.features = nn.Sequential(*(part for one in layers for part in (one, nn.Tanh())))
        self.out = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        """Prediction and loss."""
        h = self.features(x)
        weight = torch.linalg.solve(h.t() @ h + torch.eye(64), h.t() @ target)
        out = h @ weight + self.out(h)
        return out, F.mse_loss(out, target)

    @staticmethod
    def data() -> Data:
        """A micro-batch."""
        return torch.randn(256, 256), torch.randn(256, 16)


class Whitened(nn.Module):
    """Convolutions whose features are made independent by a Cholesky factor."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2)):
            conv = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        self.images, self.out = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Scores and loss."""
        h = self.images(x).mean((2, 3))
        factor = torch.linalg.cholesky(h.t() @ h / h.shape[0] + 0.1 * torch.eye(64))
        out = self.out(torch.linalg.solve_triangular(factor, h.t(), upper=False).t())
        return out, F.cross_entropy(out, labels)

    @staticmethod
    def data() -> Data:
        """A micro-batch."""
        return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


class Fourier(nn.Module):
    """A transformer that mixes words by Fourier transforms instead of attention."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(500, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.out = nn.Linear(width, 500)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Scores and loss."""
        h = self.words(x)
        for layer, (wide, narrow) in enumerate(zip(self.wide, self.narrow, strict=True)):
            h = self.norms[2 * layer](h + torch.fft.fft2(h).real)
            h = self.norms[2 * layer + 1](h + narrow(F.gelu(wide(h))))
        out = self.out(h)
        return out, F.cross_entropy(out.flatten(0, 1), labels.flatten())

    @staticmethod
    def data() -> Data:
        """A micro-batch."""
        return torch.randint(0, 500, (8, 64)), torch.randint(0, 500, (8, 64))


class Spectral(nn.Module):
    """A Fourier neural operator: most of it computes with complex numbers."""

    def __init__(self, channels: int = 32, modes: int = 8, layers: int = 4) -> None:
        super().__init__()
        shape = (channels, channels, modes, 2)
        self.filters = nn.ParameterList(torch.randn(shape) / channels for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.first, self.last = nn.Conv1d(1, channels, 1), nn.Conv1d(channels, 1, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        """Prediction and loss."""
        h = self.first(x)
        for weight, local in zip(self.filters, self.local, strict=True):
            found = torch.fft.rfft(h)
            kept = torch.einsum("bim,iom->bom", found[..., :8], torch.view_as_complex(weight))
            whole = F.pad(kept, (0, found.shape[-1] - 8))
            h = F.gelu(torch.fft.irfft(whole, n=h.shape[-1]) + local(h))
        out = self.last(h)
        return out, F.mse_loss(out, target)

    @staticmethod
    def data() -> Data:
        """A micro-batch."""
        return torch.randn(16, 1, 256), torch.randn(16, 1, 256)


class Small(nn.Module):
    """A step of some microseconds, in which every call counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        """Prediction and loss."""
        h = self.first(x)
        out = self.out(torch.special.i1(h - h.median(0).values))
        return out, F.mse_loss(out, target)

    @staticmethod
    def data() -> Data:
        """A micro-batch."""
        return torch.randn(8, 16), torch.randn(8, 4)


MODELS: dict[str, Any] = {
    "ridge": Ridge,
    "whitened": Whitened,
    "fourier": Fourier,
    "spectral": Spectral,
    "small": Small,
}


def compiled(model: nn.Module, data: Data, lowering: str) -> tuple[Step, float, dict[str, Any]]:
    """A training step of a copy of a model, the seconds of its compilation, what was decided."""
    net = copy.deepcopy(model)
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    executor = poptorch.trainingModel(net, options, torch.optim.AdamW(net.parameters()))
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(PANTILE_LOWERING=lowering, PANTILE_CACHE_DIR=cache)
        executor(*data)  # the reference engine's
        begin = time.perf_counter()
        executor(*data)
        seconds = time.perf_counter() - begin
    (facts,) = executor.nativeDecisions()
    return lambda: executor(*data), seconds, facts


def eager(model: nn.Module, data: Data) -> Step:
    """The same step in eager PyTorch."""
    net = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        net(*data)[1].backward()
        optimizer.step()

    return step


def shortest(steps: Sequence[Step], seconds: float) -> list[float]:
    """The shortest of each kind of step in microseconds, taken in turns."""
    best = [float("inf")] * len(steps)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for place, step in enumerate(steps):
            for _ in range(3):  # the first finds caches and threads as another step left them
                begin = time.perf_counter()
                step()
                best[place] = min(best[place], time.perf_counter() - begin)
    return [value * 1e6 for value in best]


def row(name: str, seconds: float) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    model, data = MODELS[name](), MODELS[name].data()
    ours, our_seconds, facts = compiled(model, data, "segments")
    theirs, their_seconds, _ = compiled(model, data, "inductor")
    times = shortest([ours, theirs, eager(model, data)], seconds)
    calls = sum(call["calls"] for call in facts.get("outside", ()))
    cells = [f"{calls}", f"{our_seconds:.1f}", f"{their_seconds:.1f}", *(f"{t:.0f}" for t in times)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print("| model | calls | compile: calls | Inductor, s | step: calls | Inductor | eager, µs |")
    print("|---|---|---|---|---|---|---|")
    for name in asked.models.split(","):
        print(row(name, asked.seconds), flush=True)


if __name__ == "__main__":
    main()
