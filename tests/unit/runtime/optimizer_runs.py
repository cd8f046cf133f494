"""A small model, its data, and the same training with an executor and eagerly."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

import poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3)

    def forward(self, x, label):
        out = self.second(torch.tanh(self.first(x)))
        return out, F.cross_entropy(out, label)


def options(strict=False):
    return poptorch.Options().showCompilationProgressBar(False).strict(strict)


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield (
            torch.randn(6, 4, generator=generator),
            torch.randint(0, 3, (6,), generator=generator),
        )


def eager_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(*batch)[1]
    loss.backward()
    optimizer.step()
    return loss.detach()


def pair(make, chosen=None):
    """A model with its executor and optimizer, and an eager twin with its optimizer."""
    model = Net()
    twin = copy.deepcopy(model)
    optimizer = make(model)
    executor = poptorch.trainingModel(model, chosen or options(), optimizer)
    return executor, model, optimizer, twin, make(twin)


def same(model, twin):
    return all(map(torch.equal, model.parameters(), twin.parameters()))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
