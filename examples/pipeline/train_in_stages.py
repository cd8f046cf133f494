"""Train a small network in four pipeline stages, and compare it with the same network in one piece.

    python train_in_stages.py               four stages, eight micro-batches an update
    python train_in_stages.py 3 6           other numbers of stages and micro-batches

It prints the schedule the stages follow and what each costs, trains both networks from the same
weights and data on the reference engine, and ends with status 1 if a single bit differs.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import poptorch

STEPS, BATCH, WIDTH = 30, 16, 32


class Network(nn.Module):
    """Layers with normalisation and dropout, each in a block of its own, and the loss."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.1)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.head(x), y)


def place(model: Network, stages: int) -> None:
    """Begin a block on the next IPU with every layer; the head stays with the last."""
    for number, layer in enumerate(model.layers[:stages]):
        poptorch.BeginBlock(layer, f"layer{number}", ipu_id=number)


def train(
    stages: int, micro_batches: int, *, placed: bool
) -> tuple[list[float], list[torch.Tensor]]:
    """The losses, and the state of the network at the end."""
    torch.manual_seed(0)
    model = Network(stages)
    if placed:
        place(model, stages)
    options = poptorch.Options().engine("reference").randomSeed(1)
    options.Training.gradientAccumulation(micro_batches)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    x = torch.randn(micro_batches * BATCH, WIDTH)
    y = x.square().mean(dim=1, keepdim=True)
    losses = [training(x, y).item() for _ in range(STEPS)]
    if placed:
        print(training.pipelineSchedule())
    return losses, [tensor.clone() for tensor in model.state_dict().values()]


def main(arguments: list[str]) -> int:
    """Train twice, compare; the exit status."""
    if len(arguments) not in (0, 2) or not all(a.isdecimal() and int(a) > 0 for a in arguments):
        print(__doc__)
        return 2
    stages, micro_batches = map(int, arguments or ("4", "8"))
    losses, state = train(stages, micro_batches, placed=True)
    plain_losses, plain_state = train(stages, micro_batches, placed=False)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} after {STEPS} updates")
    same = losses == plain_losses and all(map(torch.equal, state, plain_state))
    print(f"the same as without stages, to the last bit: {'yes' if same else 'no'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
