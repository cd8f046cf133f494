"""Static versions of PyG's functions and layers against eager PyG, or a search by hand."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.geometric import graphs as toy
from torch import nn
from torch.testing import assert_close
from torch_geometric import is_experimental_mode_enabled
from torch_geometric.data import Batch
from torch_geometric.nn import (
    ClusterGCNConv,
    DynamicEdgeConv,
    GATConv,
    HeteroLinear,
    InstanceNorm,
    LSTMAggregation,
    MFConv,
    knn,
    knn_graph,
    knn_interpolate,
    nearest,
    radius,
    radius_graph,
)
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

import poptorch
from pantile.geometric.static.swaps import StaticShapes
from poptorch_geometric import FixedSizeDataLoader

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(3))
Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(4))
BATCH_X = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
BATCH_Y = torch.tensor([0, 0, 1, 1, 1])


class Calls(nn.Module):
    """A model that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def compiled(function, *args):
    return poptorch.inferenceModel(Calls(function))(*args)


def pairs_of(index):
    """The pairs that were found, as a set; those that were not are -1 twice."""
    found = index[:, index[0] >= 0]
    assert index[:, index[0] < 0].eq(-1).all()
    pairs = [tuple(pair) for pair in found.t().tolist()]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def distances(x, y, batch_x, batch_y):
    """All pairs (point of y, point of x) of one batch, by their distance."""
    return {
        (i, j): float((y[i] - x[j]).norm())
        for i in range(len(y))
        for j in range(len(x))
        if batch_x[j] == batch_y[i]
    }


def nearest_pairs(found, count):
    chosen = set()
    for i in {i for i, _ in found}:
        own = sorted((pair for pair in found if pair[0] == i), key=found.__getitem__)
        chosen |= set(own[:count])
    return chosen


@pytest.mark.parametrize("k", [1, 3, 6])
def test_knn_finds_the_nearest_of_the_same_batch(k):
    index = compiled(lambda x, y, a, b: knn(x, y, k, a, b), X, Y, BATCH_X, BATCH_Y)

    assert index.shape == (2, 5 * k)
    assert pairs_of(index) == nearest_pairs(distances(X, Y, BATCH_X, BATCH_Y), k)


def test_radius_finds_all_within_it():
    index = compiled(lambda x, y, a, b: radius(x, y, 1.5, a, b), X, Y, BATCH_X, BATCH_Y)

    near = {p for p, d in distances(X, Y, BATCH_X, BATCH_Y).items() if d <= 1.5}
    assert pairs_of(index) == near
    assert 0 < len(near) < 20


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_graphs_of_neighbours_leave_out_the_point_itself_unless_asked(flow, loop):
    all_pairs = distances(X, X, BATCH_X, BATCH_X)
    others = {pair: d for pair, d in all_pairs.items() if loop or pair[0] != pair[1]}
    turn = -1 if flow == "source_to_target" else 1

    by_number = compiled(lambda x, b: knn_graph(x, 2, b, loop=loop, flow=flow), X, BATCH_X)
    by_radius = compiled(lambda x, b: radius_graph(x, 1.8, b, loop=loop, flow=flow), X, BATCH_X)

    assert pairs_of(by_number) == {pair[::turn] for pair in nearest_pairs(others, 2)}
    assert pairs_of(by_radius) == {pair[::turn] for pair, d in others.items() if d <= 1.8}


def test_no_more_neighbours_than_asked_for_and_then_the_nearest():
    index = compiled(lambda x: radius_graph(x, 10.0, max_num_neighbors=3), X)

    others = {p: d for p, d in distances(X, X, [0] * 9, [0] * 9).items() if p[0] != p[1]}
    assert {pair[::-1] for pair in pairs_of(index)} == nearest_pairs(others, 3)


def test_nearest_and_cosine():
    index = compiled(lambda x, y: nearest(x, y), X, Y)
    by_angle = compiled(lambda x, y: knn(x, y, 1, cosine=True), X, Y)

    assert_close(index, torch.cdist(X, Y).argmin(dim=1))
    similarity = nn.functional.normalize(Y) @ nn.functional.normalize(X).t()
    assert_close(by_angle[1], similarity.argmax(dim=1))


def test_interpolation_weighs_by_the_inverse_square_distance():
    values = torch.randn(9, 2)

    result = compiled(
        lambda v, x, y, a, b: knn_interpolate(v, x, y, a, b, k=5), values, X, Y, BATCH_X, BATCH_Y
    )

    pairs = nearest_pairs(distances(X, Y, BATCH_X, BATCH_Y), 5)
    for i in range(5):
        near = [j for k, j in pairs if k == i]
        weights = 1 / (X[near] - Y[i]).square().sum(dim=-1, keepdim=True)
        assert_close(result[i], (values[near] * weights).sum(0) / weights.sum())


def train_both(make, *inputs, expected_inputs=None, steps=3):
    """Losses and weights of a compiled model and of the same one, eager, on other inputs."""
    torch.manual_seed(2)
    eager = make()
    torch.manual_seed(2)
    mine = make()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    model = poptorch.trainingModel(mine, optimizer=torch.optim.SGD(mine.parameters(), lr=0.01))
    for _ in range(steps):
        optimizer.zero_grad()
        expected = eager(*(expected_inputs or inputs))
        expected.backward()
        optimizer.step()
        assert_close(model(*inputs), expected.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(mine.parameters(), eager.parameters(), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(mine.buffers(), eager.buffers(), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


class Squared(nn.Module):
    """The mean square of what a layer returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args):
        return poptorch.identity_loss(self.layer(*args).square().mean(), "none")


LAYERS = {
    "cluster gcn": lambda: ClusterGCNConv(5, 4, diag_lambda=0.5),
    "gat with attributes": lambda: GATConv(5, 4, edge_dim=2),
    "mf": lambda: MFConv(5, 4, max_degree=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_pick_rows_by_value_train_as_eager(name):
    batch = Batch.from_data_list(toy.graphs())
    inputs = (batch.x, batch.edge_index)
    if "attributes" in name:
        inputs = (*inputs, batch.edge_attr)

    train_both(lambda: Squared(LAYERS[name]()), *inputs)


def test_a_linear_layer_by_type_trains_as_eager():
    train_both(lambda: Squared(HeteroLinear(3, 4, 2)), X, BATCH_X)
    train_both(lambda: Squared(HeteroLinear(3, 4, 2)), X, BATCH_X.flip(0))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = InstanceNorm(3, affine=True, track_running_stats=True)

    def forward(self, x, batch):
        return self.norm(x, batch, batch_size=2).pow(3)


def test_instance_norm_trains_as_eager_with_its_statistics():
    train_both(lambda: Squared(Normalised()), X, BATCH_X)


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.aggregate = LSTMAggregation(3, 4)

    def forward(self, x, index):
        return self.aggregate(x, index, dim_size=2, max_num_elements=5)


def test_an_aggregation_that_wants_a_sorted_index_is_captured():
    train_both(lambda: Squared(Sorted()), X, BATCH_X)


def edges_within(batch, r):
    """The edges of the graph of all pairs within `r`, found by hand."""
    near = torch.cdist(batch.pos, batch.pos) <= r
    near &= batch.batch.unsqueeze(1) == batch.batch
    near.fill_diagonal_(False)
    return near.nonzero().t()


def test_edges_found_in_forward_train_as_edges_found_before():
    items = toy.graphs()
    batch = Batch.from_data_list(items[:3])
    batch.edge_index = edges_within(batch, 1.5)
    padded = next(iter(FixedSizeDataLoader(items, batch_size=4)))
    torch.manual_seed(1)
    eager = toy.SchNetLike()
    torch.manual_seed(1)
    mine = toy.SchNetOfRadius()
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.01)
    model = poptorch.trainingModel(mine, optimizer=torch.optim.Adam(mine.parameters(), lr=0.01))

    for _ in range(3):
        optimizer.zero_grad()
        _, expected = eager(batch)
        expected.backward()
        optimizer.step()
        assert_close(model(padded)[1], expected.detach(), rtol=1e-5, atol=1e-6)


class EdgeMax(nn.Module):
    """What `DynamicEdgeConv` does, for given neighbours."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, neighbours):
        rows = [
            self.layers(torch.cat([x[i].expand(len(n), -1), x[n] - x[i]], dim=1)).amax(dim=0)
            for i, n in enumerate(neighbours)
        ]
        return torch.stack(rows)


def test_a_layer_that_searches_its_neighbours_uses_only_those_it_finds(monkeypatch):
    monkeypatch.setattr("torch_geometric.typing.WITH_KNN", True)  # asked for when it is made
    layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    pairs = nearest_pairs(distances(X, X, BATCH_X, BATCH_X), 5)
    neighbours = [sorted(j for i, j in pairs if i == row) for row in range(9)]
    assert {len(n) for n in neighbours} == {4, 5}  # one batch has fewer points than asked for

    found = poptorch.inferenceModel(DynamicEdgeConv(layers, k=5))(X, BATCH_X)

    assert_close(found, EdgeMax(layers)(X, neighbours))


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "std", "softmax"])
def test_missing_edges_change_no_aggregation(aggr):
    class Ring(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = toy.SumOfNeighbors(aggr)

        def forward(self, x, edges):
            return self.layer(x, remove_self_loops(edges)[0])

    edges = torch.tensor([[0, 1, 2, 3, 3], [1, 1, 3, 3, 4]])

    found = poptorch.inferenceModel(Ring())(X, edges)

    assert_close(found, Ring()(X, edges))


def test_self_loops_keep_their_weights():
    edges = torch.tensor([[0, 1, 1, 2], [1, 1, 0, 2]])
    weights = torch.tensor([1.0, 5.0, 2.0, 7.0])

    def dense(index, weight):
        return torch.zeros(4, 4).index_put(tuple(index), weight, accumulate=True)

    index, weight = compiled(
        lambda e, w: add_remaining_self_loops(e, w, fill_value=3.0, num_nodes=4), edges, weights
    )

    assert_close(
        dense(index, weight), dense(*add_remaining_self_loops(edges, weights, 3.0, num_nodes=4))
    )


def test_attributes_of_new_loops_are_means_of_those_that_are_there():
    edges = torch.tensor([[0, 1, 1, 2, 3], [1, 1, 0, 2, 1]])
    attributes = torch.randn(5, 2)

    def looped(e, a):
        e, a = remove_self_loops(e, a)
        return add_self_loops(e, a, fill_value="mean", num_nodes=4)

    _, found = compiled(looped, edges, attributes)

    assert_close(found[-4:], looped(edges, attributes)[1][-4:])


def test_captures_that_overlap_leave_nothing_behind():
    from torch_geometric.nn import MessagePassing

    original = MessagePassing._index_select
    entered, leave = threading.Event(), threading.Event()

    def capture():
        with StaticShapes():
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=capture)
    with StaticShapes():
        other.start()
        assert entered.wait(60)
    still = is_experimental_mode_enabled("disable_dynamic_shapes")
    leave.set()
    other.join()

    assert still
    assert MessagePassing._index_select is original
    assert not is_experimental_mode_enabled("disable_dynamic_shapes")


def test_outside_a_capture_and_in_other_threads_pyg_is_as_it_was():
    import torch_geometric.utils as utils

    original = utils.remove_self_loops
    edges = torch.tensor([[0, 1], [1, 1]])
    seen = []

    def look():
        seen.append(utils.remove_self_loops(edges)[0].shape[1])

    with StaticShapes():
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert is_experimental_mode_enabled("disable_dynamic_shapes")

    assert seen == [2, 1]
    assert utils.remove_self_loops is original
    assert remove_self_loops is original
    assert not is_experimental_mode_enabled("disable_dynamic_shapes")
