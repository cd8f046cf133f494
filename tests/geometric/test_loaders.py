from __future__ import annotations

import pytest
import torch
from tests.geometric.graphs import SIZES, graphs, hetero_graph
from torch.testing import assert_close
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader as PyGLoader

from pantile.errors import DataArgumentError, GraphOptionError, GraphSizeError
from pantile.geometric import plain
from poptorch import DataLoader as CombiningLoader
from poptorch import DataLoaderMode, Options, SharingStrategy
from poptorch_geometric import (
    DataLoader,
    FixedSizeDataLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    OverSizeStrategy,
)

PACK = FixedSizeStrategy.StreamPack


def equal_batches(a, b):
    assert sorted(a.keys()) == sorted(b.keys())
    for name in a.to_dict():
        assert_close(a[name], b[name])


def real_rows(loader):
    """The features of all real nodes a loader delivers, in order."""
    return torch.cat([batch.x[batch.nodes_mask] for batch in loader])


def test_plain_batches_are_pygs():
    ours = list(DataLoader(graphs(), batch_size=2, follow_batch=["x"], exclude_keys=["z"]))

    theirs = list(PyGLoader(graphs(), batch_size=2, follow_batch=["x"], exclude_keys=["z"]))
    assert len(ours) == len(theirs) == 3
    for mine, other in zip(ours, theirs, strict=True):
        equal_batches(mine, other)


def test_a_batch_has_one_graph_less_than_batch_size_and_padding():
    loader = FixedSizeDataLoader(graphs(), batch_size=4)

    batches = list(loader)

    assert len(loader) == len(batches) == 2
    assert all(batch.graphs_mask.tolist() == [True, True, True, False] for batch in batches)
    assert_close(real_rows(batches), Batch.from_data_list(graphs()).x)


def test_masks_can_be_left_out():
    assert "nodes_mask" not in next(iter(FixedSizeDataLoader(graphs(), add_pad_masks=False)))


def test_a_call_of_several_micro_batches_gets_them_joined():
    options = Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    sizes = FixedSizeOptions.from_dataset(graphs(), 2)

    (combined,) = FixedSizeDataLoader(graphs(), 2, fixed_size_options=sizes, options=options)

    parts = list(FixedSizeDataLoader(graphs(), 2, fixed_size_options=sizes))
    assert len(parts) == 6
    for name in parts[0].to_dict():
        assert_close(combined[name], torch.cat([part[name] for part in parts]))


def test_packing_fills_batches_better_and_loses_no_graph():
    sizes = FixedSizeOptions(num_nodes=14, num_edges=26, num_graphs=4)

    batches = list(FixedSizeDataLoader(graphs(), 4, False, sizes, PACK))

    assert_close(real_rows(batches), Batch.from_data_list(graphs()).x)
    assert {batch.x.shape for batch in batches} == {(14, 5)}
    assert {batch.graphs_mask.shape for batch in batches} == {(4,)}
    assert len(batches) < len(SIZES)


def test_packed_micro_batches_are_joined_too():
    sizes = FixedSizeOptions(num_nodes=14, num_edges=26, num_graphs=4)
    parts = list(FixedSizeDataLoader(graphs(), 4, False, sizes, PACK))
    options = Options().deviceIterations(len(parts))

    (combined,) = FixedSizeDataLoader(graphs(), 4, False, sizes, PACK, options=options)

    assert_close(combined.edge_index, torch.cat([part.edge_index for part in parts]))


def test_shuffling_a_packed_loader_keeps_all_graphs():
    sizes = FixedSizeOptions(num_nodes=14, num_edges=26, num_graphs=4)
    rows = real_rows(FixedSizeDataLoader(graphs(), 4, True, sizes, PACK))

    expected = Batch.from_data_list(graphs()).x
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    assert rows.tolist() != expected.tolist()


@pytest.mark.parametrize(
    ("workers", "strategy"), [(0, SharingStrategy.ForkServer), (2, SharingStrategy.Fork)]
)
def test_an_asynchronous_loader_delivers_the_same(workers, strategy):
    expected = list(FixedSizeDataLoader(graphs(), batch_size=3))
    loader = FixedSizeDataLoader(
        graphs(),
        batch_size=3,
        mode=DataLoaderMode.Async,
        num_workers=workers,
        async_options={"sharing_strategy": strategy},
    )

    for _ in range(2):
        for mine, other in zip(loader, expected, strict=True):
            equal_batches(mine, other)
            assert mine.num_graphs == other.num_graphs
    loader.terminate()


def test_typed_graphs_load():
    items = [hetero_graph(2, 5, 6), hetero_graph(3, 4, 7), hetero_graph(1, 1, 1)]

    batches = list(FixedSizeDataLoader(items, batch_size=2))

    assert len(batches) == 3
    assert {batch["user"].x.shape for batch in batches} == {(4, 3)}
    assert [int(batch["item"].nodes_mask.sum()) for batch in batches] == [5, 4, 1]


def test_a_sampler_of_the_users_chooses_the_graphs():
    sizes = FixedSizeOptions.from_dataset(graphs(), 4)

    batches = list(
        FixedSizeDataLoader(
            graphs(), 4, fixed_size_options=sizes, batch_sampler=[[5, 4, 3], [0], [1, 2]]
        )
    )

    assert [int(batch.graphs_mask.sum()) for batch in batches] == [3, 1, 2]
    assert_close(batches[1].x[batches[1].nodes_mask], graphs()[0].x)


def test_what_does_not_fit_is_an_error_trimmed_or_skipped():
    sizes = FixedSizeOptions(num_nodes=6, num_edges=10)

    with pytest.raises(GraphSizeError):
        list(FixedSizeDataLoader(graphs(), 2, False, sizes))
    trimmed = FixedSizeDataLoader(
        graphs(),
        2,
        fixed_size_options=sizes,
        over_size_strategy=OverSizeStrategy.TrimNodesAndEdges,
    )
    assert {batch.x.shape for batch in trimmed} == {(6, 5)}
    skipping = FixedSizeDataLoader(
        graphs(), 2, False, sizes, PACK, over_size_strategy=OverSizeStrategy.Skip
    )
    fitting = sum(1 for nodes, edges in SIZES if nodes < 6 and edges < 10)
    assert sum(int(batch.graphs_mask.sum()) for batch in skipping) == fitting


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": 3, "fixed_size_options": FixedSizeOptions(9)}, DataArgumentError),
        ({"batch_size": 1}, GraphOptionError),
        ({"over_size_strategy": OverSizeStrategy.Skip}, GraphOptionError),
        ({"fixed_size_strategy": PACK, "batch_sampler": [[0]]}, GraphOptionError),
        ({"mode": DataLoaderMode.AsyncRebatched}, DataArgumentError),
        ({"mode": DataLoaderMode.Async, "drop_last": False}, DataArgumentError),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_with_a_fix(arguments, error):
    with pytest.raises(error) as caught:
        FixedSizeDataLoader(graphs(), **arguments)

    assert caught.value.fix


def test_a_loader_for_executors_is_the_plain_one_and_poptorchs():
    assert FixedSizeDataLoader.__mro__[1:4] == (
        plain.FixedSizeDataLoader,
        CombiningLoader,
        torch.utils.data.DataLoader,
    )


def test_an_item_of_a_plain_loader_is_one_batch():
    sizes = FixedSizeOptions.from_dataset(graphs(), 3)

    ours = list(plain.FixedSizeDataLoader(graphs(), batch_size=3, fixed_size_options=sizes))

    combining = FixedSizeDataLoader(graphs(), batch_size=3, fixed_size_options=sizes)
    for mine, other in zip(ours, combining, strict=True):
        equal_batches(mine, other)


@pytest.mark.parametrize("strategy", FixedSizeStrategy)
def test_a_joined_batch_of_typed_graphs_tells_the_nodes_and_edges_of_one(strategy):
    items = [hetero_graph(2, 3, 4) for _ in range(6)]
    sizes = FixedSizeOptions(8, 12, 3)
    options = Options().deviceIterations(3)

    loader = FixedSizeDataLoader(
        items,
        batch_size=3,
        fixed_size_options=sizes,
        fixed_size_strategy=strategy,
        options=options,
    )
    batch = next(iter(loader))

    assert (batch.num_nodes, batch.num_edges) == (16, 12)
    assert batch["user"].x.shape[0] == 3 * 8
