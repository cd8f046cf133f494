"""`import poptorch` is cheap, and so is the first compilation of a model of ordinary size."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

# Processor time: the clock on the wall would measure what else the machine is doing.
TIMED = """
import time
import torch
start = time.process_time()
import poptorch
print(time.process_time() - start)
"""

# Tracing needs them (half a second and more): they belong to the first compilation.
HEAVY = ("sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")

LOADED = f"""
import sys
import torch
before = set(sys.modules)
import poptorch
print(sorted(m for m in {HEAVY!r} if m in sys.modules and m not in before))
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip()


def test_importing_poptorch_adds_less_than_half_a_second_to_importing_torch() -> None:
    seconds = statistics.median(float(run(TIMED)) for _ in range(3))

    assert seconds < 0.5


def test_importing_poptorch_loads_nothing_that_only_tracing_needs() -> None:
    assert run(LOADED) == "[]"


class Residual(nn.Module):
    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(wide, out, 3, stride, 1, bias=False)
        self.norm_a = nn.BatchNorm2d(out)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_b = nn.BatchNorm2d(out)
        self.short: Callable[[Tensor], Tensor] = nn.Identity()
        if stride != 1 or wide != out:
            self.short = nn.Sequential(
                nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(h + self.short(x))


class ResNet18(nn.Module):
    """The layers of ResNet-18, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        wide = [64, 64, 128, 256, 512]
        blocks: list[nn.Module] = []
        for i in range(1, 5):
            blocks += [
                Residual(wide[i - 1], wide[i], 1 if i == 1 else 2),
                Residual(wide[i], wide[i], 1),
            ]
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return F.cross_entropy(self.fc(h.mean((2, 3))), y)


@pytest.mark.slow
def test_resnet_18_is_captured_within_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.inferenceModel(nn.Linear(2, 2))(torch.ones(1, 2))  # the imports of tracing
    model = ResNet18()
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))

    start = time.process_time()
    executor.compile(torch.randn(2, 3, 64, 64), torch.tensor([1, 2]))
    seconds = time.process_time() - start

    with capsys.disabled():
        print(f"\nResNet-18 training step captured and compiled in {seconds:.2f} s")
    assert seconds < 5.0
