"""`DataLoader`: sizes, modes, partitioning, batch samplers, refusals."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
import torch.utils.data
from tests.unit.data.toy_datasets import Counting, CountingStream, Graph, GraphParser, identity
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from pantile.data import AsynchronousDataAccessor, DataLoader
from pantile.enums import DataLoaderMode, SharingStrategy
from pantile.errors import DataError, Error
from pantile.options import Options

MODES = list(DataLoaderMode)
FORK = {"sharing_strategy": SharingStrategy.Fork}


def rows(loader):
    return [batch.tolist() for batch in loader]


def settings(mode):
    return {"mode": mode} | ({} if mode is DataLoaderMode.Sync else {"async_options": FORK})


# --- the combined batch ---------------------------------------------------------------------------


def test_a_batch_feeds_all_iterations_accumulation_steps_and_replicas(loader):
    made = loader(Counting(100), batch_size=2, D=2, G=3, R=4)

    assert made.combinedBatchSize == 2 * 2 * 3 * 4
    assert rows(made) == [list(range(48)), list(range(48, 96))]
    assert len(made) == 2


def test_replicas_of_an_input_group_share_rows():
    from pantile.enums import CommGroupType

    options = Options().replicationFactor(4)
    options.inputReplicaGrouping(2, CommGroupType.Consecutive)

    assert DataLoader(options, Counting(8), batch_size=3).combinedBatchSize == 6


def test_options_are_kept_and_frozen():
    options = Options()

    made = DataLoader(options, Counting(4))

    assert made.options is options
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(3)


def test_without_batching_rows_come_as_they_are(loader):
    made = loader(Counting(3), batch_size=None)

    assert made.combinedBatchSize is None
    assert rows(made) == [0, 1, 2]


def test_it_is_torchs_loader_with_other_defaults(loader):
    made = loader(Counting(10), batch_size=3)

    assert isinstance(made, torch.utils.data.DataLoader)
    assert (made.drop_last, made.persistent_workers, made.num_workers) == (True, False, 0)
    assert len(rows(made)) == 3


def test_other_arguments_go_to_torch(loader):
    made = loader(Counting(4), batch_size=2, collate_fn=identity, sampler=[3, 1, 2, 0])

    assert [[int(x) for x in batch] for batch in made] == [[3, 1], [2, 0]]


def test_shuffling_follows_torchs_generator(loader):
    made = loader(Counting(20), batch_size=4, shuffle=True)
    reference = torch.utils.data.DataLoader(Counting(20), batch_size=4, shuffle=True)

    torch.manual_seed(5)
    expected = rows(reference)
    torch.manual_seed(5)
    assert rows(made) == expected


def test_workers_persist_by_default_and_can_be_told_not_to(loader):
    persistent = loader(Counting(8), batch_size=2, num_workers=1)
    temporary = loader(Counting(8), batch_size=2, num_workers=1, persistent_workers=False)

    assert persistent.persistent_workers
    assert not temporary.persistent_workers
    assert rows(persistent) == rows(persistent) == rows(temporary)


# --- the last batch -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_last_rows_are_dropped_or_come_in_a_smaller_batch(loader, mode, drop_last):
    made = loader(Counting(11), batch_size=2, D=2, drop_last=drop_last, **settings(mode))

    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert rows(made) == (expected[:2] if drop_last else expected)
    assert len(made) == (2 if drop_last else 3)


def test_keeping_an_incomplete_batch_is_worth_one_warning(loader, caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        loader(Counting(11), batch_size=4, drop_last=False)
        loader(Counting(12), batch_size=4, drop_last=False)
        loader(Counting(11), batch_size=4)

    assert len(caplog.records) == 1
    assert "drop_last=False the last one has 3" in caplog.text


def test_a_dataset_smaller_than_one_batch_is_not_swallowed_silently(loader, caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        made = loader(Counting(3), batch_size=4)

    assert len(made) == 0
    assert "yield nothing" in caplog.text


# --- the worked numbers of the specification ------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(DataLoaderMode.Sync, 20), (DataLoaderMode.Async, 20), (DataLoaderMode.AsyncRebatched, 25)],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_101_streamed_elements_7_workers_batches_of_4(loader, mode, expected):
    made = loader(CountingStream(101), batch_size=4, num_workers=7, **settings(mode))

    assert len(rows(made)) == expected
    assert len(made) == 25


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_101_indexed_elements_7_workers_batches_of_4(loader, mode):
    made = loader(Counting(101), batch_size=4, num_workers=7, **settings(mode))

    assert rows(made) == [list(range(i, i + 4)) for i in range(0, 100, 4)]
    assert len(made) == 25


def test_rebatching_from_smaller_pieces_keeps_all_rows(loader):
    made = loader(
        CountingStream(10),
        batch_size=4,
        drop_last=False,
        rebatched_worker_size=3,
        **settings(DataLoaderMode.AsyncRebatched),
    )

    assert rows(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(made) == 3


# --- asynchronous modes ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
def test_asynchronous_modes_deliver_what_sync_delivers_epoch_after_epoch(loader, mode):
    data = TensorDataset(torch.rand(24, 3), torch.arange(24))
    sync = loader(data, batch_size=2, D=3)
    made = loader(data, batch_size=2, D=3, **settings(mode))

    for _ in range(3):
        for got, want in zip(made, sync, strict=True):
            assert type(got) is type(want)
            assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_a_shuffling_worker_draws_what_this_process_would_have_drawn(loader):
    torch.manual_seed(11)
    made = loader(Counting(20), batch_size=4, shuffle=True, **settings(DataLoaderMode.Async))
    torch.manual_seed(11)
    expected = rows(loader(Counting(20), batch_size=4, shuffle=True))

    first, second = rows(made), rows(made)

    assert first == expected
    assert second != first


def test_batches_of_an_asynchronous_loader_are_the_callers_own(loader):
    made = loader(Counting(40), batch_size=2, **settings(DataLoaderMode.Async))

    kept = list(made)

    assert [b.tolist() for b in kept] == [[i, i + 1] for i in range(0, 40, 2)]


def test_strict_mode_lends_buffers_that_change(loader):
    made = loader(Counting(400), batch_size=2, strict=True, **settings(DataLoaderMode.Async))

    kept = list(made)

    assert [b.tolist() for b in kept] != [[i, i + 1] for i in range(0, 400, 2)]


def test_terminate_is_final_and_may_be_repeated(loader):
    for mode in MODES:
        made = loader(Counting(8), batch_size=2, **settings(mode))
        made.terminate()
        made.terminate()

        with pytest.raises(DataError, match="terminated"):
            iter(made)


# --- several processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_processes_read_disjoint_blocks(loader, mode):
    parts = [
        rows(loader(Counting(22), batch_size=2, D=2, process=(p, 2), **settings(mode)))
        for p in range(2)
    ]

    assert parts[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert parts[1] == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_shuffling_is_global_reproducible_and_new_in_every_epoch(loader):
    def make(p):
        return loader(Counting(64), batch_size=4, shuffle=True, seed=9, process=(p, 2))

    first, second, again = make(0), make(1), make(0)
    epoch = rows(first) + rows(second)

    assert sorted(row for batch in epoch for row in batch) == list(range(64))
    assert rows(again) == epoch[:8]
    assert rows(first) != epoch[:8]


def test_the_length_is_that_of_this_processs_share(loader):
    assert len(loader(Counting(101), batch_size=4, process=(1, 3))) == 8


def test_partitioning_can_be_left_to_the_dataset(loader):
    made = loader(
        CountingStream(8), batch_size=4, process=(1, 2), auto_distributed_partitioning=False
    )

    assert rows(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("dataset", "arguments", "kind"),
    [
        (Counting(8), {"shuffle": True}, AssertionError),
        (Counting(8), {"batch_size": None}, AssertionError),
        (CountingStream(8), {}, AssertionError),
        (Counting(8), {"sampler": [0, 1]}, DataError),
        (Counting(8), {"batch_sampler": [[0], [1]]}, Error),
    ],
    ids=["no seed", "no batches", "stream", "sampler", "batch sampler"],
)
def test_what_cannot_be_partitioned_is_refused_with_a_fix_that_works(
    loader, dataset, arguments, kind
):
    with pytest.raises(kind) as caught:
        loader(dataset, process=(0, 2), **arguments)

    assert caught.value.fix
    if "seed" in str(caught.value):
        loader(dataset, process=(0, 2), seed=1, **arguments)
    else:
        loader(dataset, process=(0, 2), auto_distributed_partitioning=False, **arguments)


# --- batch samplers -------------------------------------------------------------------------------


def micro_batches(rows, size, drop_last=False):
    return BatchSampler(SequentialSampler(range(rows)), size, drop_last)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop_last", [True, False])
def test_micro_batches_of_a_sampler_are_joined(loader, mode, drop_last):
    made = loader(
        Counting(14),
        D=2,
        batch_sampler=micro_batches(14, 2),
        drop_last=drop_last,
        **settings(mode),
    )

    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]
    assert rows(made) == (expected[:3] if drop_last else expected)
    assert len(made) == (3 if drop_last else 4)
    assert made.combinedBatchSize == 4


def test_micro_batches_of_a_users_type_are_joined_through_its_parser(loader):
    from pantile.program.structure import register_parser

    def collate(numbers):
        return Graph(torch.stack(numbers), torch.stack(numbers) + 100)

    register_parser(Graph, GraphParser())
    try:
        made = loader(Counting(4), D=2, batch_sampler=[[0, 1], [2, 3]], collate_fn=collate)
        (graph,) = list(made)
    finally:
        register_parser(Graph, None)

    assert graph.nodes.tolist() == [0, 1, 2, 3]
    assert graph.edges.tolist() == [100, 101, 102, 103]


@pytest.mark.parametrize("arguments", [{"batch_size": 2}, {"batch_size": None}, {"shuffle": True}])
def test_a_batch_sampler_excludes_what_it_decides_itself(loader, arguments):
    with pytest.raises(Error, match="batch_sampler") as caught:
        loader(Counting(8), batch_sampler=micro_batches(8, 2), **arguments)

    assert caught.value.fix


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_without_a_length_has_none(loader):
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(loader(CountingStream(8, sized=False)))


@pytest.mark.parametrize(("init", "warnings"), [(None, 1), (identity, 0)])
def test_several_workers_over_a_stream_are_worth_a_warning(loader, caplog, init, warnings):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        loader(CountingStream(8), num_workers=2, worker_init_fn=init)

    assert len(caplog.records) == warnings


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "names"),
    [
        ({"batch_size": 0}, AssertionError, "batch_size"),
        ({"batch_size": -1}, AssertionError, "batch_size"),
        ({"batch_size": 2.0}, AssertionError, "batch_size"),
        ({"batch_size": True}, AssertionError, "batch_size"),
        ({"mode": 7}, AssertionError, "mode"),
        (
            {"mode": DataLoaderMode.AsyncRebatched, "batch_size": None},
            AssertionError,
            "AsyncRebatched",
        ),
        (
            {
                "mode": DataLoaderMode.AsyncRebatched,
                "batch_size": 4,
                "rebatched_worker_size": 5,
            },
            AssertionError,
            "rebatched_worker_size",
        ),
        (
            {"mode": DataLoaderMode.Async, "async_options": {"rebatched_size": 2}},
            AssertionError,
            "rebatched_size",
        ),
        (
            {"mode": DataLoaderMode.Async, "async_options": {"buffer_size": 0}},
            AssertionError,
            "buffer_size",
        ),
        (
            {"mode": DataLoaderMode.Async, "async_options": {"sharing_strategy": 9}},
            AssertionError,
            "sharing_strategy",
        ),
    ],
)
def test_a_wrong_argument_is_named_and_comes_with_a_fix(loader, arguments, kind, names):
    with pytest.raises(kind, match=names) as caught:
        loader(Counting(8), **arguments)

    assert isinstance(caught.value, DataError)
    assert caught.value.fix


def test_torchs_order_of_arguments_is_recognised():
    with pytest.raises(AssertionError, match="options is a Counting") as caught:
        DataLoader(Counting(8), 4)

    assert "poptorch.DataLoader(options, dataset" in caught.value.fix


def test_a_loader_with_an_accessor_cannot_get_another(loader):
    made = loader(Counting(8), **settings(DataLoaderMode.Async))

    with pytest.raises(Error, match="already"):
        AsynchronousDataAccessor(made)


# --- idioms of clients ----------------------------------------------------------------------------


def test_clients_may_bind_the_options_and_replace_torchs_class(monkeypatch):
    options = Options().deviceIterations(2)
    bound = functools.partialmethod(DataLoader.__init__, options)
    monkeypatch.setattr(DataLoader, "__init__", bound)
    monkeypatch.setattr(torch.utils.data, "DataLoader", DataLoader)

    made = torch.utils.data.DataLoader(
        Counting(8), batch_size=2, mode=DataLoaderMode.Async, async_options=FORK
    )

    try:
        assert rows(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    finally:
        made.terminate()
