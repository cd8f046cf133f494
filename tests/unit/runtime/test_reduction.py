"""Gradients of micro-batches and replicas: the reduction alone, and whole runs against eager."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from pantile.program.spec import TensorSpec
from pantile.runtime.reduction import Grouping, Reduction

Mean, Sum = poptorch.ReductionType.Mean, poptorch.ReductionType.Sum
Strategy = poptorch.MeanReductionStrategy
BATCH = 3


# The reduction alone


def reduced(reduction, gradients):
    """What the update applies, for gradients[step][replica] of one parameter."""
    sums = reduction.accumulators({"w": TensorSpec.of(gradients[0][0])})
    for step, row in enumerate(gradients):
        for replica, gradient in enumerate(row):
            sums.add(replica, step, {"w": gradient})
    return sums.reduced()["w"].float() / reduction.divisor


@pytest.mark.parametrize("running", [False, True])
def test_a_mean_is_the_mean_over_micro_batches_and_replicas(running):
    gradients = torch.randn(4, 3, 5)

    found = reduced(Reduction(4, 3, mean=True, running=running), gradients)

    torch.testing.assert_close(found, gradients.mean((0, 1)), rtol=1e-6, atol=1e-6)


def test_a_sum_is_the_sum():
    gradients = torch.randn(4, 3, 5)

    found = reduced(Reduction(4, 3, mean=False, running=True), gradients)

    torch.testing.assert_close(found, gradients.sum((0, 1)), rtol=1e-6, atol=1e-6)


def test_a_running_mean_in_half_does_not_overflow_where_a_sum_would():
    gradients = torch.full((4, 1, 2), 40000.0)

    running = Reduction(4, 1, mean=True, running=True, accumulator_type=torch.float16)
    post = Reduction(4, 1, mean=True, running=False, accumulator_type=torch.float16)

    torch.testing.assert_close(
        reduced(running, gradients), torch.full((2,), 40000.0), rtol=1e-3, atol=0
    )
    assert reduced(post, gradients).isinf().all()


def test_the_gradients_given_are_not_written_to():
    gradients = torch.randn(3, 2, 5)
    before = gradients.clone()

    reduced(Reduction(3, 2, mean=True, running=True), gradients)

    assert torch.equal(gradients, before)


def test_replicas_of_a_group_are_reduced_among_themselves():
    gradients = torch.randn(1, 4, 2)
    grouping = Grouping({"w": (0, 1, 0, 1)})

    found = reduced(Reduction(1, 4, mean=False, running=False, grouping=grouping), gradients)

    wanted = torch.stack([gradients[0, 0] + gradients[0, 2], gradients[0, 1] + gradients[0, 3]])
    assert torch.equal(found, wanted)


# Whole runs


class Net(nn.Module):
    def __init__(self, dropout=0.0, norm=False):
        super().__init__()
        # The gradient of a bias before a norm is rounding noise, which Adam would blow up.
        self.first = nn.Linear(4, 6, bias=not norm)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.second = nn.Linear(6, 3)

    def forward(self, x, label):
        out = self.second(self.drop(torch.tanh(self.norm(self.first(x)))))
        return out, F.cross_entropy(out, label)


def options(d=1, g=1, r=1, kind=Mean, strategy=Strategy.Post):
    chosen = poptorch.Options().showCompilationProgressBar(False)
    chosen.deviceIterations(d).replicationFactor(r)
    chosen.Training.gradientAccumulation(g)
    chosen.Training.accumulationAndReplicationReductionType(kind)
    chosen.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    return chosen


def data(count):
    return torch.randn(count, 4), torch.randint(0, 3, (count,))


def eager_run(model, make, batch, d, g, r, kind):
    """D updates, each from G x R micro-batches in order; buffers belong to a replica."""
    rows = [t.split(BATCH) for t in batch]
    replicas = [model] + [copy.deepcopy(model) for _ in range(r - 1)]
    optimizer = make(model)
    for iteration in range(d):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for index in range(g * r):
            replica = replicas[index % r]
            x, label = (t[iteration * g * r + index] for t in rows)
            gradients = torch.autograd.grad(replica(x, label)[1], list(replica.parameters()))
            total = [t + gr for t, gr in zip(total, gradients, strict=True)]
        for p, t in zip(model.parameters(), total, strict=True):
            p.grad = t / (g * r) if kind is Mean else t
        optimizer.step()
        for replica in replicas[1:]:
            for p, q in zip(replica.parameters(), model.parameters(), strict=True):
                p.data.copy_(q.data)


MAKERS = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
}


def close(model, twin):
    for (name, ours), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize(("d", "g", "r"), [(3, 1, 1), (1, 4, 1), (1, 1, 3), (2, 3, 2)])
@pytest.mark.parametrize("net", [{"norm": True}, {"dropout": 0.3}], ids=str)
def test_a_step_equals_the_sequential_eager_run(optimizer, d, g, r, net):
    model = Net(**net)
    twin = copy.deepcopy(model)
    batch = data(BATCH * d * g * r)
    executor = poptorch.trainingModel(model, options(d, g, r), MAKERS[optimizer](model))

    torch.manual_seed(7)
    executor(*batch)
    torch.manual_seed(7)
    eager_run(twin, MAKERS[optimizer], batch, d, g, r, Mean)

    close(model, twin)


@pytest.mark.parametrize("kind", [Mean, Sum])
@pytest.mark.parametrize("strategy", [Strategy.Running, Strategy.Post, Strategy.PostAndLoss])
def test_every_strategy_gives_the_same_update(kind, strategy):
    model = Net()
    twin = copy.deepcopy(model)
    batch = data(BATCH * 2 * 3 * 2)
    executor = poptorch.trainingModel(
        model, options(2, 3, 2, kind, strategy), MAKERS["momentum"](model)
    )

    executor(*batch)
    eager_run(twin, MAKERS["momentum"], batch, 2, 3, 2, kind)

    close(model, twin)


@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize(("g", "r"), [(4, 1), (1, 4), (2, 2)])
def test_micro_batches_and_replicas_equal_one_big_batch(optimizer, g, r):
    model = Net()
    twin = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, options(1, g, r), MAKERS[optimizer](model))
    reference = MAKERS[optimizer](twin)

    for _ in range(3):
        batch = data(BATCH * g * r)
        executor(*batch)
        reference.zero_grad()
        twin(*batch)[1].backward()
        reference.step()

    close(model, twin)


def test_the_sum_over_two_micro_batches_equals_twice_the_learning_rate():
    model = Net()
    twin = copy.deepcopy(model)
    batch = data(BATCH * 2)
    halves = torch.optim.SGD(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, options(g=2, kind=Sum), halves)
    whole = torch.optim.SGD(twin.parameters(), lr=0.02)

    executor(*batch)
    twin(*batch)[1].backward()
    whole.step()

    close(model, twin)


def test_half_accumulators_stay_close_to_the_exact_mean():
    model = Net()
    twin = copy.deepcopy(model)
    batch = data(BATCH * 4)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
    executor = poptorch.trainingModel(model, options(g=4), optimizer)

    executor(*batch)
    eager_run(twin, MAKERS["SGD"], batch, 1, 4, 1, Mean)

    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
