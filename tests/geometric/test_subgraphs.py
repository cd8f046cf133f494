from __future__ import annotations

import pytest
import torch
from tests.geometric.graphs import graph
from torch.testing import assert_close
from torch_geometric.loader import ClusterData
from torch_geometric.sampler import BaseSampler, SamplerOutput

from pantile.errors import GraphSizeError
from pantile.geometric.subgraphs import PlainClusterLoader
from poptorch import Options
from poptorch_geometric import (
    FixedSizeClusterLoader,
    FixedSizeNeighborLoader,
    FixedSizeOptions,
    OverSizeStrategy,
)


class Clusters(ClusterData):
    """Clusters of consecutive nodes: PyG's own need the METIS library."""

    def _metis(self, edge_index, num_nodes):
        return torch.arange(num_nodes) * self.num_parts // num_nodes


@pytest.fixture
def big():
    item = graph(24, 60)
    item.name = torch.arange(24)
    return item


@pytest.fixture
def clusters(big):
    del big.y
    return Clusters(big, num_parts=6, log=False)


def test_clusters_are_padded_to_one_size_and_cover_the_graph(big, clusters):
    batches = list(FixedSizeClusterLoader(clusters, batch_size=2))

    assert len(batches) == 3
    assert len({batch.x.shape for batch in batches}) == 1
    assert len({batch.edge_index.shape for batch in batches}) == 1
    names = torch.cat([batch.name[batch.nodes_mask] for batch in batches])
    assert sorted(names.tolist()) == list(range(24))
    rows = torch.cat([batch.x[batch.nodes_mask] for batch in batches])
    assert_close(rows, big.x[names])


def test_only_edges_within_a_batch_remain(big, clusters):
    (first, *_) = FixedSizeClusterLoader(clusters, batch_size=2)

    within = big.edge_index[:, (big.edge_index < 8).all(dim=0)]
    found = first.name[first.edge_index[:, first.edges_mask]]
    assert sorted(found.t().tolist()) == sorted(within.t().tolist())


def test_clusters_of_several_micro_batches_are_joined(clusters):
    options = Options().deviceIterations(3)

    (batch,) = FixedSizeClusterLoader(clusters, batch_size=2, options=options)

    sizes = FixedSizeClusterLoader(clusters, batch_size=2).fixed_size_options
    assert batch.x.shape == (3 * sizes.num_nodes, 5)
    assert batch.edge_index.shape == (6, sizes.num_edges)


def test_clusters_that_do_not_fit_are_trimmed_or_refused(clusters):
    sizes = FixedSizeOptions(num_nodes=6, num_edges=8)

    trimmed = list(FixedSizeClusterLoader(clusters, sizes, batch_size=2))

    assert {batch.x.shape for batch in trimmed} == {(6, 5)}
    with pytest.raises(GraphSizeError):
        list(FixedSizeClusterLoader(clusters, sizes, 2, OverSizeStrategy.Error))


class AllNeighbours(BaseSampler):
    """Every node with an edge to a seed: PyG's own sampler needs a compiled library."""

    def __init__(self, edge_index):
        self.edge_index = edge_index

    def sample_from_nodes(self, inputs):
        seeds = inputs.node
        edges = torch.isin(self.edge_index[1], seeds).nonzero().flatten()
        sources = self.edge_index[0, edges]
        others = sources[~torch.isin(sources, seeds)].unique()
        nodes = torch.cat([seeds, others])
        place = torch.full((int(self.edge_index.max()) + 1,), -1)
        place[nodes] = torch.arange(len(nodes))
        return SamplerOutput(
            nodes,
            place[sources],
            place[self.edge_index[1, edges]],
            edges,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError("only nodes are sampled here")

    @property
    def edge_permutation(self):
        return None


def test_neighbourhoods_are_padded_to_one_size_with_the_seeds_first(big):
    seeds = torch.tensor([3, 1, 4, 15, 9, 2])

    loader = FixedSizeNeighborLoader(
        big,
        [-1],
        seeds,
        batch_size=2,
        neighbor_sampler=AllNeighbours(big.edge_index),
        exclude_keys=["y"],
    )
    batches = list(loader)

    assert len(batches) == 3
    assert len({batch.x.shape for batch in batches}) == 1
    for batch, expected in zip(batches, seeds.split(2), strict=True):
        assert batch.batch_size == 2
        assert_close(batch.x[:2], big.x[expected])
        senders = batch.edge_index[:, batch.edges_mask]
        assert int(batch.edges_mask.sum()) == int(torch.isin(big.edge_index[1], expected).sum())
        assert senders.max() < batch.nodes_mask.sum()


def test_a_sample_can_be_had_before_and_after_padding(big):
    loader = FixedSizeNeighborLoader(
        big, [-1], batch_size=2, neighbor_sampler=AllNeighbours(big.edge_index), exclude_keys=["y"]
    )

    sample = loader.nativeCollate([0, 1])
    rows = sample.num_nodes
    padded = loader.fixedSizeCollate(sample)

    assert padded.num_nodes == loader.fixed_size_options.num_nodes > rows
    assert_close(padded.x[:rows], sample.x)


def test_a_plain_loader_of_clusters_gives_one_batch_an_item(clusters):
    sizes = FixedSizeOptions(12, 60, 2)

    plain = list(PlainClusterLoader(clusters, sizes, batch_size=2))

    options = Options().deviceIterations(3)
    (joined,) = FixedSizeClusterLoader(clusters, sizes, batch_size=2, options=options)
    assert_close(torch.cat([batch.x for batch in plain]), joined.x)
