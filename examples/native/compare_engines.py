"""Train one model on two engines, from the same weights and data, and compare what they learned.

    python compare_engines.py                        reference and native
    python compare_engines.py reference tiered       any two

The first engine sets the measure: the program ends with status 1 if the losses of the second differ
by more than rounding explains.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import poptorch

CALLS, ITERATIONS, BATCH = 20, 10, 32
TOLERANCE = 1e-3


class Regression(nn.Module):
    """A small network with its loss. No dropout: engines draw different random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers(x), y)


def train(engine: str) -> tuple[torch.Tensor, float]:
    """The loss of every update, and the seconds of the last call."""
    torch.manual_seed(0)
    x = torch.randn(ITERATIONS * BATCH, 8)
    y = x.square().mean(dim=1, keepdim=True)
    options = poptorch.Options().engine(engine).deviceIterations(ITERATIONS)
    options.outputMode(poptorch.OutputMode.All)  # every update's loss, not only the last one's
    model = Regression()
    training = poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters(), lr=0.01))
    losses = []
    for _ in range(CALLS):  # the first iteration of the first call is the reference engine's
        begin = time.perf_counter()
        losses.append(training(x, y))
        seconds = time.perf_counter() - begin
    return torch.cat(losses), seconds


def main(engines: list[str]) -> int:
    """Train with each engine; the exit status."""
    first, second = engines or ("reference", "native")
    results = {}
    for engine in (first, second):
        results[engine], seconds = train(engine)
        print(f"{engine}: loss {results[engine][0]:.4f} -> {results[engine][-1]:.4f}, ", end="")
        print(f"{seconds / ITERATIONS * 1e6:.0f} µs an update in the last call")
    furthest = (results[second] - results[first]).abs().max().item()
    print(f"largest difference between the losses of an update: {furthest:.1e}")
    return 0 if furthest < TOLERANCE else 1


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit("usage: compare_engines.py [ENGINE ENGINE]")
    sys.exit(main(sys.argv[1:]))
