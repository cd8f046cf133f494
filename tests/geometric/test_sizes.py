from __future__ import annotations

import pytest
from tests.geometric.graphs import SIZES, graphs, hetero_graph
from torch_geometric.loader import DataLoader as PyGLoader

from pantile.errors import Error, GraphOptionError
from poptorch_geometric import FixedSizeOptions


def test_without_edges_there_is_room_for_complete_graphs():
    options = FixedSizeOptions(num_nodes=7)

    assert (options.num_edges, options.num_graphs) == (7 * 6, 2)
    assert (options.node_pad_value, options.edge_pad_value, options.graph_pad_value) == (0, 0, 0)


def test_a_dataset_gives_room_for_its_biggest_graphs_and_one_of_padding():
    options = FixedSizeOptions.from_dataset(graphs(), batch_size=4)

    assert options.num_nodes == 3 * max(nodes for nodes, _ in SIZES) + 1
    assert options.num_edges == 3 * max(edges for _, edges in SIZES) + 1
    assert options.num_graphs == 4


def test_a_limit_looks_at_the_first_graphs_only():
    assert FixedSizeOptions.from_dataset(graphs(), 2, sample_limit=1).num_nodes == SIZES[0][0] + 1


def test_a_loader_gives_its_biggest_batch_and_one_of_padding():
    loader = PyGLoader(graphs(), batch_size=2)

    options = FixedSizeOptions.from_loader(loader, sample_limit=7)

    pairs = [SIZES[i : i + 2] for i in range(0, len(SIZES), 2)]
    assert options.num_nodes == max(sum(nodes for nodes, _ in pair) for pair in pairs) + 1
    assert options.num_edges == max(sum(edges for _, edges in pair) for pair in pairs) + 1
    assert options.num_graphs == 3


def test_sizes_of_typed_graphs_are_by_type():
    options = FixedSizeOptions.from_dataset([hetero_graph(2, 5, 6), hetero_graph(3, 4, 7)], 3)

    assert options.is_hetero()
    assert options.num_nodes == {"user": 2 * 3 + 1, "item": 2 * 5 + 1}
    assert options.num_edges == {("user", "buys", "item"): 2 * 7 + 1}
    assert (options.total_num_nodes, options.total_num_edges) == (7 + 11, 15)


def test_one_number_can_be_that_of_each_type():
    options = FixedSizeOptions(num_nodes=5, num_edges=9)

    assert not options.is_hetero()
    assert options.to_hetero(["a", "b"], [("a", "to", "b")]) is options
    assert (options.num_nodes, options.num_edges) == ({"a": 5, "b": 5}, {("a", "to", "b"): 9})


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (lambda: FixedSizeOptions(num_nodes=5, num_graphs=1), "padding graph"),
        (lambda: FixedSizeOptions.from_dataset(graphs(), batch_size=1), "padding graph"),
        (lambda: FixedSizeOptions(num_nodes=-1), "num_nodes=-1"),
        (lambda: FixedSizeOptions(num_nodes=5, num_edges="many"), "num_edges='many'"),
        (lambda: FixedSizeOptions.from_dataset([], batch_size=2), "no graph"),
    ],
)
def test_impossible_sizes_are_refused_with_a_fix(make, mentions):
    with pytest.raises(GraphOptionError, match=mentions) as caught:
        make()

    assert isinstance(caught.value, ValueError) and isinstance(caught.value, Error)
    assert caught.value.fix
