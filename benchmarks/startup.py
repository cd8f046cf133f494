"""How long it takes until the first step: importing poptorch, and capturing a ResNet-18.

    python -m benchmarks.startup

Imports are timed in fresh processes, `import torch` alone and with `import poptorch`, interleaved;
the difference of the medians is what Pantile adds. Capture is the whole compilation of a training
step (forward, loss, gradients) of a ResNet-18 on 64 x 64 images, and of its optimizer update.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn

import poptorch

_TIMER = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
_BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            convolution = nn.Conv2d(before, after, 1, stride, bias=False)
            self.short = nn.Sequential(convolution, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


class ResNet18(nn.Module):
    """ResNet-18 with its loss."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        width = 64
        for after, stride in _BLOCKS:
            layers.append(Residual(width, after, stride))
            width = after
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
        self.layers = nn.Sequential(*layers, *head)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x), labels)


def import_seconds(statement: str) -> float:
    """The time of an import in a fresh process."""
    command = [sys.executable, "-c", _TIMER.format(statement)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def capture_seconds() -> tuple[float, float]:
    """The time to compile the gradients of a ResNet-18, and until its first two steps are done."""
    model = ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, optimizer)
    batch = torch.randn(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)
    begin = time.perf_counter()
    executor.compile(*batch)
    compiled = time.perf_counter()
    executor(*batch)
    executor(*batch)
    return compiled - begin, time.perf_counter() - begin


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (5)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    alone, both = [], []
    for _ in range(rounds):
        alone.append(import_seconds("import torch"))
        both.append(import_seconds("import torch, poptorch"))
    added = statistics.median(both) - statistics.median(alone)
    print(f"import torch                 {spread(alone)}")
    print(f"import torch, poptorch       {spread(both)}, adds {added:.2f} s")
    capture_seconds()  # the first capture of a process also imports torch's tracing modules
    measured = [capture_seconds() for _ in range(rounds)]
    print(f"ResNet-18: compile           {spread([compiled for compiled, _ in measured])}")
    print(f"ResNet-18: compile, 2 steps  {spread([steps for _, steps in measured])}")


if __name__ == "__main__":
    main()
