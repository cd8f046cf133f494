from __future__ import annotations

import pytest
from tests.geometric.graphs import SIZES, graph, graphs
from torch.utils.data import RandomSampler

from pantile.errors import DataError, GraphOptionError, GraphSizeError
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler


def test_graphs_are_packed_in_order_until_one_does_not_fit():
    # nodes 4 7 3 6 2 5 with at most 3 graphs of 12 nodes; a graph that is missing needs one node
    packs = list(StreamPackingSampler(graphs(), 3, max_num_nodes=12, max_num_edges=100))

    assert packs == [[0, 1], [2, 3, 4], [5]]


@pytest.mark.parametrize(("most", "nodes", "edges"), [(2, 9, 14), (4, 15, 20), (6, 27, 44)])
def test_no_pack_exceeds_a_limit_and_no_graph_is_lost(most, nodes, edges):
    sampler = StreamPackingSampler(graphs(), most, nodes, edges)

    packs = list(sampler)

    assert [index for pack in packs for index in pack] == list(range(len(SIZES)))
    for pack in packs:
        missing = most - len(pack)
        assert sum(SIZES[i][0] for i in pack) + missing <= nodes
        assert sum(SIZES[i][1] for i in pack) + missing <= edges
    assert len(sampler) == len(packs)


def test_without_limits_any_graphs_fit():
    sampler = StreamPackingSampler(graphs(), 2)

    assert (sampler.max_num_nodes, sampler.max_num_edges) == (2 * 7, 2 * 12)
    assert list(sampler) == [[0, 1], [2, 3], [4, 5]]


def test_the_order_is_that_of_the_base_sampler():
    assert list(StreamPackingSampler(graphs(), 2, base_sampler=[5, 0, 3])) == [[5, 0], [3]]


def test_a_graph_that_never_fits_is_an_error_or_skipped():
    items = [graph(3, 3), graph(30, 3), graph(4, 3)]

    with pytest.raises(GraphSizeError, match="graph 1 with 30 nodes") as caught:
        list(StreamPackingSampler(items, 2, 10, 10))
    assert "allow_skip_data" in caught.value.fix
    assert list(StreamPackingSampler(items, 2, 10, 10, allow_skip_data=True)) == [[0], [2]]


def test_the_number_of_random_packs_is_not_known():
    items = graphs()

    with pytest.raises(DataError, match="depends on the order"):
        len(StreamPackingSampler(items, 2, base_sampler=RandomSampler(items)))


@pytest.mark.parametrize("limits", [(0,), (None,), (3, 2), (3, 5, 2)])
def test_impossible_limits_are_refused(limits):
    with pytest.raises(GraphOptionError):
        StreamPackingSampler(graphs(), *limits)


def test_an_empty_base_sampler_is_refused():
    with pytest.raises(GraphOptionError, match="base_sampler"):
        StreamPackingSampler(graphs(), 2, base_sampler=[])
