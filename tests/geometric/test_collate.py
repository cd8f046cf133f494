from __future__ import annotations

import pytest
import torch
from tests.geometric.graphs import graph, graphs, hetero_graph
from torch.testing import assert_close
from torch_geometric.data import Batch, Data

from pantile.errors import DataArgumentError, GraphSizeError
from poptorch_geometric import FixedSizeOptions, make_exclude_keys
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from poptorch_geometric.pyg_collate import Collater


def pad(items, nodes=20, edges=30, count=4, **kwargs):
    options = FixedSizeOptions(nodes, edges, count, 7.0, 8.0, 9.0)
    return FixedSizeCollater(options, add_masks_to_batch=True, **kwargs)(items)


def test_real_graphs_come_first_and_are_unchanged():
    items = graphs()[:3]
    real = Batch.from_data_list(items)

    batch = pad(items)

    for name in ("x", "pos", "z", "batch"):
        assert_close(batch[name][batch.nodes_mask], real[name])
    assert_close(batch.edge_index[:, batch.edges_mask], real.edge_index)
    assert_close(batch.edge_attr[batch.edges_mask], real.edge_attr)
    assert_close(batch.y[batch.graphs_mask], real.y)


def test_padding_has_the_values_asked_for_and_edges_of_its_own():
    batch = pad(graphs()[:3])
    padding = ~batch.nodes_mask

    assert batch.x[padding].eq(7).all() and batch.z[padding].eq(7).all()
    assert batch.edge_attr[~batch.edges_mask].eq(8).all()
    assert batch.y.tolist()[3:] == [9]
    loops = batch.edge_index[:, ~batch.edges_mask]
    assert loops.eq(int(batch.nodes_mask.sum())).all()  # the first padding node, at both ends
    assert batch.batch[padding].eq(3).all()


def test_every_batch_has_the_same_shapes():
    items = graphs()
    batches = [pad(items[:3]), pad(items[3:6]), pad(items[:1]), pad(items[4:6])]

    shapes = [{name: tuple(batch[name].shape) for name in batch.to_dict()} for batch in batches]

    assert shapes[0]["x"] == (20, 5) and shapes[0]["edge_index"] == (2, 30)
    assert all(each == shapes[0] for each in shapes)


def test_several_padding_graphs_share_nodes_and_edges_evenly():
    batch = pad([graph(4, 6)], nodes=11, edges=11, count=4)

    assert batch.ptr.tolist() == [0, 4, 7, 9, 11]
    counts = torch.bincount(batch.batch[batch.edge_index[0, 6:]], minlength=4)
    assert counts.tolist() == [0, 2, 2, 1]


def test_padding_graphs_without_nodes_have_no_edges():
    batch = pad([graph(4, 6)], nodes=5, edges=10, count=4)

    assert batch.ptr.tolist() == [0, 4, 5, 5, 5]
    assert batch.edge_index[:, 6:].eq(4).all()


def test_labels_of_nodes_are_padded_like_nodes():
    items = [
        Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 1).long(), y=torch.ones(n))
        for n in (1, 3)
    ]

    assert pad(items).y.tolist() == [1] * 4 + [7] * 16


def test_an_attribute_is_not_taken_for_another_because_of_one_batch():
    def item(nodes):
        edge_index = torch.zeros(2, 1).long()
        return Data(x=torch.ones(nodes, 1), edge_index=edge_index, box=torch.ones(3))

    collate = FixedSizeCollater(FixedSizeOptions(20, 30, 4))

    shapes = [collate([item(nodes)]).box.shape for nodes in (2, 3)]

    assert shapes == [(4 * 3,), (4 * 3,)]


def test_values_that_are_no_tensors_have_defaults_or_those_of_the_first_graph():
    item = graph(3, 4)
    item.name, item.kind, item.weight = "water", "fluid", 18.0
    options = FixedSizeOptions(6, 9, 2, pad_graph_defaults={"name": "none"})

    batch = FixedSizeCollater(options)([item])

    assert batch.name == ["water", "none"]
    assert batch.kind == ["fluid", "fluid"]
    assert_close(batch.weight, torch.tensor([18.0, 18.0]))


def test_a_number_of_nodes_that_no_tensor_tells_is_padded_too():
    item = Data(edge_index=torch.zeros(2, 3).long(), num_nodes=4)

    batch = pad([item])

    assert batch.num_nodes == 20
    assert batch.nodes_mask.tolist() == [True] * 4 + [False] * 16


def test_typed_graphs_are_padded_by_type():
    items = [hetero_graph(2, 5, 6), hetero_graph(3, 4, 7)]
    options = FixedSizeOptions({"user": 8, "item": 12}, {("user", "buys", "item"): 20}, 3)

    batch = FixedSizeCollater(options, add_masks_to_batch=True)(items)

    edges = batch["user", "buys", "item"]
    assert (batch["user"].x.shape, batch["item"].x.shape) == ((8, 3), (12, 4))
    assert batch["user"].nodes_mask.sum() == 5 and batch["item"].nodes_mask.sum() == 9
    assert edges.edges_mask.sum() == 13
    assert edges.edge_index[0, 13:].eq(5).all() and edges.edge_index[1, 13:].eq(9).all()
    assert batch.graphs_mask.tolist() == [True, True, False]


def test_an_exact_fit_needs_no_padding():
    batch = pad([graph(4, 6), graph(7, 12)], nodes=11, edges=18, count=2)

    assert batch.graphs_mask.all() and batch.nodes_mask.all() and batch.edges_mask.all()


@pytest.mark.parametrize(
    ("sizes", "mentions"),
    [
        ({"nodes": 10}, "too large"),
        ({"edges": 17}, "too large"),
        ({"count": 2, "nodes": 5}, "too large"),
        ({"count": 2}, "none is left"),
        ({"nodes": 11}, "no padding node"),
    ],
)
def test_graphs_that_do_not_fit_are_an_error_with_a_fix(sizes, mentions):
    with pytest.raises(GraphSizeError, match=mentions) as caught:
        pad([graph(4, 6), graph(7, 12)], **{"count": 3, **sizes})

    assert isinstance(caught.value, RuntimeError)
    assert caught.value.fix


def test_too_many_nodes_are_trimmed_at_random_and_every_graph_keeps_one():
    items = [graph(1, 1), graph(9, 20), graph(9, 20, seed=1)]

    batch = pad(items, nodes=8, edges=60, trim_nodes=True)

    assert batch.nodes_mask.tolist() == [True] * 7 + [False]
    assert set(batch.batch[batch.nodes_mask].tolist()) == {0, 1, 2}
    kept = {tuple(row) for row in batch.x[batch.nodes_mask].tolist()}
    assert kept <= {tuple(row) for item in items for row in item.x.tolist()}


def test_too_many_edges_are_trimmed_and_no_node():
    items = [graph(9, 20), graph(9, 20, seed=1)]

    batch = pad(items, nodes=20, edges=11, trim_edges=True)

    assert batch.edges_mask.all() and batch.nodes_mask.sum() == 18
    assert_close(batch.x[batch.nodes_mask], Batch.from_data_list(items).x)


def test_trimming_typed_graphs_goes_by_type():
    items = [hetero_graph(6, 2, 9), hetero_graph(5, 2, 9)]
    options = FixedSizeOptions({"user": 6, "item": 9}, {("user", "buys", "item"): 8}, 3)

    batch = FixedSizeCollater(options, True, trim_nodes=True, trim_edges=True)(items)

    assert batch["user"].nodes_mask.sum() == 5 and batch["item"].nodes_mask.sum() == 4
    assert batch["user", "buys", "item"].edge_index.shape == (2, 8)


def test_more_graphs_than_nodes_cannot_be_trimmed():
    with pytest.raises(GraphSizeError, match="each graph keeps"):
        pad([graph(4, 4)] * 3, nodes=3, trim_nodes=True)


def test_follow_batch_and_exclude_keys_are_pygs():
    options = FixedSizeOptions(20, 30, 4)
    collate = FixedSizeCollater(options, follow_batch=["edge_attr"], exclude_keys=["pos"])

    batch = collate(graphs()[:3])

    assert "pos" not in batch
    assert batch.edge_attr_batch.shape == (30,)


def test_all_keys_but_some_can_be_excluded():
    assert set(make_exclude_keys(["x", "y"], graph(3, 3))) == {
        "z",
        "pos",
        "edge_index",
        "edge_attr",
    }


def test_a_combined_batch_holds_one_batch_after_the_other():
    one = FixedSizeCollater(FixedSizeOptions(20, 30, 3), True)
    items = graphs()

    combined = CombinedBatchingCollater(one, mini_batch_size=2)(items)

    parts = [one(items[start : start + 2]) for start in (0, 2, 4)]
    for name in parts[0].to_dict():
        assert_close(combined[name], torch.cat([part[name] for part in parts]))
    assert CombinedBatchingCollater(one)(items[:2]).num_graphs == 3


@pytest.mark.parametrize("items", [[], graph(2, 2), [graph(2, 2), hetero_graph(2, 2, 2)], ["text"]])
def test_what_is_no_list_of_graphs_is_refused(items):
    with pytest.raises(DataArgumentError):
        pad(items)


def test_a_collater_takes_lists_only():
    with pytest.raises(TypeError, match="Expected list, got tuple"):
        pad((graph(3, 4),))


def test_graphs_that_are_no_whole_mini_batches_are_refused():
    with pytest.raises(AssertionError, match="Invalid batch size"):
        CombinedBatchingCollater(Collater(), mini_batch_size=2)([graph(3, 4)] * 3)
