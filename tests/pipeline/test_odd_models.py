"""Models whose stages share more than activations: still the bits of the unannotated model."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from tests.pipeline.models import same_bits
from torch import nn

import poptorch
from poptorch import AutoStage, Block, PipelinedExecution


class Odd(nn.Module):
    """Two linear layers in stages; subclasses say what lies between them."""

    annotated = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def block(self, name: str, ipu: int):
        return Block(name, ipu_id=ipu) if self.annotated else nullcontext()


class SharedBuffer(Odd):
    """Stage 1 writes a buffer that stage 0 reads."""

    def forward(self, x, target):
        with self.block("a", 0):
            x = torch.tanh(self.first(x) + self.seen)
        with self.block("b", 1):
            x = self.second(x)
            self.seen.mul_(0.5).add_(x.detach().mean(0))
            return x, F.mse_loss(x, target)


class SwappedBuffers(Odd):
    """Two buffers of which each gets the other's value, in different stages."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.ones(3))

    def forward(self, x, target):
        with self.block("a", 0):
            x = self.first(x) + self.other
            kept = self.seen.clone()
            self.seen.copy_(self.other + x.detach().sum(0))
        with self.block("b", 1):
            x = self.second(x)
            self.other.copy_(kept)
            return x, F.mse_loss(x, target)


class Rejecting(Odd):
    """Draws whose number depends on values."""

    def forward(self, x, target):
        with self.block("a", 0):
            x = self.first(x) + torch.poisson(x.detach().abs() * 5)
        with self.block("b", 1):
            x = F.dropout(self.second(x), 0.5)
            return x, F.mse_loss(x, target)


class InnerGradient(Odd):
    """A gradient penalty: backward nodes in the middle of forward, draws after them."""

    def forward(self, x, target):
        with self.block("a", 0):
            inner = self.first(x)
            (slope,) = torch.autograd.grad(
                inner.square().sum(), self.first.weight, create_graph=True
            )
        with self.block("b", 1):
            out = F.dropout(self.second(inner), 0.5)
            return out, F.mse_loss(out, target) + slope.square().mean()


class Returning(Odd):
    """Every stage returns something: its argument, a view, a whole activation, a count."""

    def forward(self, x, target):
        with self.block("a", 0):
            y = self.first(x)
            early = y[0], x
        with self.block("b", 1):
            z = self.second(y)
            return *early, F.mse_loss(z, target), y, self.first.weight, torch.ones(1).long()


class Writing(Odd):
    """Stage 1 writes to an argument that stage 0 reads."""

    def forward(self, x, target):
        with self.block("a", 0):
            y = self.first(x * 3)
        with self.block("b", 1):
            z = self.second(y)
            x.mul_(2)
            return z, F.mse_loss(z, target)


class BackAndForth(Odd):
    """Comes back to an IPU it was on before."""

    def forward(self, x, target):
        with self.block("a", 0):
            x = self.first(x)
        with self.block("b", 1):
            x = torch.tanh(self.second(x))
        with self.block("a", 0):
            x = F.dropout(self.first(x), 0.5)
            return x, F.mse_loss(x, target)


class FirstOnTheSecond(Odd):
    """Begins on IPU 1: there is an empty stage on IPU 0."""

    def forward(self, x, target):
        with self.block("a", 1):
            x = self.first(x)
        with self.block("b", 2):
            x = self.second(x)
            return x, F.mse_loss(x, target)


ALL = [
    SharedBuffer, SwappedBuffers, Rejecting, InnerGradient, Returning, Writing, BackAndForth,
    FirstOnTheSecond,
]  # fmt: skip


def trained(kind: type[Odd], *, annotated: bool, scaling: float = 1.0, strict: bool = False):
    torch.manual_seed(0)
    model = kind()
    model.annotated = annotated
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False).strict(strict)
    options.Training.gradientAccumulation(5)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=scaling)
    executor = poptorch.trainingModel(model, options, optimizer)
    results = []
    for _ in range(2):
        x = torch.randn(10, 3)
        results += [*executor(x, torch.randn(10, 3)), x]
    report = str(executor.pipelineSchedule())
    executor.copyWeightsToHostIfNeeded()
    return [*results, *model.state_dict().values(), torch.rand(2)], report


@pytest.mark.parametrize("kind", ALL)
def test_odd_models_train_to_the_bits_of_the_unannotated_model(kind, monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", "2")

    assert same_bits(trained(kind, annotated=True)[0], trained(kind, annotated=False)[0])


@pytest.mark.parametrize("settings", [{"scaling": 64.0}, {"strict": True}])
def test_scaled_losses_and_resident_weights_change_nothing(settings):
    in_stages, _ = trained(SharedBuffer, annotated=True, **settings)
    plain, _ = trained(SharedBuffer, annotated=False, **settings)

    assert same_bits(in_stages, plain)


def test_what_keeps_micro_batches_from_overlapping_is_said():
    reports = {
        kind: trained(kind, annotated=True)[1] for kind in (SharedBuffer, Rejecting, Writing)
    }

    assert "'seen' is read by the forward of stage 0 and written by" in reports[SharedBuffer]
    assert "aten.poisson.default takes depends on its values" in reports[Rejecting]
    assert "'x' is read by" in reports[Writing]
    assert "one after the other" not in trained(BackAndForth, annotated=True)[1]


def test_functions_of_the_user_are_called_in_the_order_of_micro_batches():
    calls = []

    def note(x):
        calls.append(int(x[0, 0]))
        return x

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.note = poptorch.CPU(note, "note")

        def forward(self, x):
            with Block("a", ipu_id=0):
                (x,) = (self.note(x),)
            with Block("b", ipu_id=1):
                return self.note(x + 100)

    options = poptorch.Options().deviceIterations(3).showCompilationProgressBar(False)
    executor = poptorch.inferenceModel(Calling(), options)
    x = torch.arange(3.0).reshape(3, 1)
    executor.compile(x)
    calls.clear()

    executor(x)

    assert calls == [0, 100, 1, 101, 2, 102]


def test_auto_increment_runs_with_an_empty_first_stage():
    options = poptorch.Options().deviceIterations(2).showCompilationProgressBar(False)
    options.setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for layer in model:
        poptorch.BeginBlock(layer)
    x = torch.randn(4, 2)

    executor = poptorch.inferenceModel(model, options)

    assert torch.equal(executor(x), torch.cat([model(x[:2]), model(x[2:])]).detach())
    assert executor.pipelineSchedule().schedule.stages == 3
