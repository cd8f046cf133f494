"""Padded batches train a model exactly as far as eager PyG does on the graphs alone."""

from __future__ import annotations

import pytest
import torch
from tests.geometric import graphs as toy
from torch.testing import assert_close
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_add_pool

import poptorch
from pantile.errors import DataDependentError
from poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, TrainingStepper
from poptorch_geometric.utils import set_aggregation_dim_size

MODELS = [toy.gcn, toy.gcn_without_loops, toy.gin, toy.gat, toy.SchNetLike]


def made(make):
    torch.manual_seed(1)
    return make()


def eager_steps(model, batches, lr=0.01):
    """The losses of a loop anybody would write."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        _, loss = model(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def trained(model, options=None, lr=0.01):
    return poptorch.trainingModel(
        model, options, optimizer=torch.optim.Adam(model.parameters(), lr=lr)
    )


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_padded_batch_trains_as_the_graphs_without_padding(make):
    items = toy.graphs()
    loader = FixedSizeDataLoader(items, batch_size=4)
    alone = [Batch.from_data_list(items[:3]), Batch.from_data_list(items[3:])] * 2
    eager, compiled = made(make), made(make)
    expected = eager_steps(eager, alone)

    model = trained(compiled)
    losses = [model(batch)[1] for _ in range(2) for batch in loader]

    assert_close(torch.stack(losses), expected, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_device_iterations_and_accumulation_take_a_combined_batch_apart():
    items = toy.graphs()
    eager, compiled = made(toy.gin), made(toy.gin)
    options = poptorch.Options().deviceIterations(3)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    sizes = FixedSizeOptions.from_dataset(items, 2)
    (combined,) = FixedSizeDataLoader(items, 2, fixed_size_options=sizes, options=options)
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.01)
    expected = []
    for pair in (items[:2], items[2:4], items[4:]):
        optimizer.zero_grad()
        for item in pair:
            _, loss = eager(Batch.from_data_list([item]))
            (loss / 2).backward()
            expected.append(loss.detach())
        optimizer.step()

    _, losses = trained(compiled, options)(combined)

    assert_close(losses, torch.stack(expected), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_native_engine_trains_the_same():
    items = toy.graphs()
    loader = FixedSizeDataLoader(items, batch_size=4)
    alone = [Batch.from_data_list(items[:3]), Batch.from_data_list(items[3:])]
    eager, compiled = made(toy.gcn), made(toy.gcn)
    expected = eager_steps(eager, alone)

    model = trained(compiled, poptorch.Options().engine("native"))
    losses = torch.stack([model(batch)[1] for batch in loader])

    assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def test_the_stepper_passes_a_model_that_does_the_same_on_both_sides():
    batch = next(iter(FixedSizeDataLoader(toy.graphs(), batch_size=4)))

    TrainingStepper(made(toy.gat), lr=0.01).run(3, (batch,))


class DiffersWhenCompiled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        scale = 2.0 if poptorch.isRunningOnIpu() else 1.0
        out = x * self.weight * scale
        return out, out.sum()


def test_the_stepper_names_what_differs():
    with pytest.raises(AssertionError, match="Output was not equal"):
        TrainingStepper(DiffersWhenCompiled()).run(1, (torch.ones(2),))


def test_the_stepper_can_time_both_sides():
    batch = next(iter(FixedSizeDataLoader(toy.graphs(), batch_size=4)))

    times = TrainingStepper(made(toy.gin)).benchmark(2, (batch,), devices=("ipu", "cpu"))

    assert set(times) == {"ipu_time", "cpu_time"} and min(times.values()) > 0


def test_layers_can_be_told_how_many_nodes_there_are():
    model = torch.nn.Sequential(toy.SumOfNeighbors())
    x, edges = torch.arange(3.0).reshape(3, 1), torch.tensor([[0, 1], [2, 2]])

    set_aggregation_dim_size(model, 5)

    assert model[0](x, edges).flatten().tolist() == [0, 0, 1, 0, 0]


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(5, 3)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.conv(x, edge_index), batch)


def test_a_size_that_depends_on_values_is_refused_with_the_place():
    batch = next(iter(FixedSizeDataLoader(toy.graphs(), batch_size=4)))

    with pytest.raises(DataDependentError, match=r"torch_geometric.utils._scatter\.py"):
        poptorch.inferenceModel(Pooled())(batch.x, batch.edge_index, batch.batch)
