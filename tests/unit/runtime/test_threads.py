"""Several threads, each with its own models, get what one thread gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import options, strict
from torch import nn

import poptorch

THREADS = 8


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Net(nn.Module):
    """A model whose layers, shapes and op mix depend on its number."""

    def __init__(self, number: int, *, drop: float) -> None:
        super().__init__()
        width = 3 + number
        self.number, self.drop = number, drop
        self.layers = nn.Sequential(
            *(nn.Linear(width, width) for _ in range(1 + number % 3)), nn.BatchNorm1d(width)
        )
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, target):
        self.seen += 1
        out = self.layers(x)
        out = torch.tanh(out) if self.number % 2 else F.gelu(out)
        return out, F.mse_loss(F.dropout(out, self.drop), target)


def settings(number: int) -> poptorch.Options:
    """Every fourth executor is strict; the odd ones, which drop out, have seeds of their own."""
    make = strict if number % 4 == 3 else options
    opts = make(accumulation=1 + number // 2 % 2)
    if number % 2:
        opts.createOrSet(random_seed=100 + number)  # unlike randomSeed, it leaves torch's alone
    return opts


def work(number: int) -> list[torch.Tensor]:
    """Train one model for a few steps, with a partial batch, and give all it computed."""
    generator = torch.Generator().manual_seed(number)
    model = Net(number, drop=0.4 if number % 2 else 0.0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    optimizer = torch.optim.Adam if number % 2 else torch.optim.SGD
    step = poptorch.trainingModel(model, settings(number), optimizer(model.parameters(), lr=0.05))
    width, losses = 3 + number, []
    for rows in (8, 8, 8 if number % 4 == 3 else 4, 8):
        x = torch.randn(rows, width, generator=generator)
        losses.append(step(x, torch.sin(x))[1])
    step.destroy()
    return [*losses, *(value.clone() for value in model.state_dict().values())]


def test_eight_threads_compute_what_one_thread_computes():
    serial = [work(number) for number in range(THREADS)]

    with ThreadPoolExecutor(THREADS) as pool:
        parallel = list(pool.map(work, range(THREADS)))

    for one, other in zip(serial, parallel, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_threads_with_executors_on_one_model_do_not_disturb_each_other():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval()

    def infer(number):
        executor = poptorch.inferenceModel(model, options())
        shapes = [1 + (number + i) % 5 for i in range(4)]
        return [executor(torch.full((rows, 4), 0.1 * number)) for rows in shapes]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(infer, range(THREADS)))

    for number, outputs in enumerate(results):
        for out in outputs:
            assert torch.equal(out, model(torch.full((len(out), 4), 0.1 * number)))


def test_many_threads_reading_strict_weights_cause_one_copy():
    model = nn.Linear(3, 3)
    step = poptorch.trainingModel(Wrapped(model), strict())
    step(torch.ones(2, 3))
    copies = []
    copy_weights = step.copyWeightsToHost
    step.copyWeightsToHost = lambda: (copies.append(1), copy_weights())

    with ThreadPoolExecutor(THREADS) as pool:
        values = list(pool.map(lambda _: model.weight.clone(), range(THREADS)))

    assert len(copies) == 1
    assert all(torch.equal(value, values[0]) for value in values)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return poptorch.identity_loss(self.inner(x), reduction="mean")
