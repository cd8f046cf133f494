"""`AsynchronousDataAccessor`: epochs, the ring, ownership, errors."""

from __future__ import annotations

import itertools
import logging
import os

import pytest
import torch
from tests.unit.data.toy_datasets import (
    Batches,
    Counting,
    CountingStream,
    Drawing,
    Graph,
    GraphParser,
    Items,
    Misbehaving,
    Point,
    Telling,
)
from torch.utils.data import DataLoader as TorchLoader

from pantile.data import DataLoader
from pantile.enums import SharingStrategy
from pantile.errors import DataError, Error
from pantile.options import Options
from pantile.program.structure import register_parser

FORK = SharingStrategy.Fork


def numbers(accessor):
    return [int(item) for item in accessor]


# --- what can be iterated -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", list(SharingStrategy), ids=str)
def test_every_way_to_start_the_worker_delivers_the_same(accessor, strategy):
    made = accessor(Counting(5), sharing_strategy=strategy)

    assert numbers(made) == numbers(made) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "source",
    [
        Counting(4),
        CountingStream(4),
        Items(*[torch.tensor(i) for i in range(4)]),
        [torch.tensor(i) for i in range(4)],
        TorchLoader(Counting(4)),
        DataLoader(Options(), Counting(4)),
    ],
    ids=["indexed", "stream", "iterable", "list", "torch loader", "loader"],
)
def test_any_source_of_tensors_will_do(accessor, source):
    assert numbers(accessor(source)) == [0, 1, 2, 3]


def test_a_source_of_more_tensors_than_there_are_descriptors_can_be_sent(accessor):
    made = accessor(list(torch.arange(2000)))

    assert numbers(made) == list(range(2000))


def test_nested_items_of_changing_shapes_and_values_arrive(accessor):
    register_parser(Graph, GraphParser())
    try:
        sent = [
            {"x": torch.rand(2), "more": [Point(torch.rand(1), "a"), 7]},
            {"x": torch.rand(500, 500), "more": [Point(torch.rand(3), "b"), None]},
            Graph(torch.rand(2, 2), torch.rand(3), "named"),
            "only text",
        ]

        received = list(accessor(Items(*sent)))
    finally:
        register_parser(Graph, None)

    assert torch.equal(received[0]["x"], sent[0]["x"])
    assert torch.equal(received[1]["x"], sent[1]["x"])
    assert received[1]["more"][0].label == "b"
    assert torch.equal(received[2].nodes, sent[2].nodes)
    assert (received[2].name, received[3]) == ("named", "only text")


def test_a_parser_that_cannot_be_sent_does_not_keep_other_data_from_being_sent(accessor):
    class Local(GraphParser):
        pass

    register_parser(Graph, Local())
    try:
        received = numbers(accessor(Counting(3)))
    finally:
        register_parser(Graph, None)

    assert received == [0, 1, 2]


def test_the_length_is_that_of_the_source(accessor):
    assert len(accessor(Counting(5), sharing_strategy=FORK)) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stand_alone_rebatching_accessor_counts_its_own_batches(accessor, workers):
    source = DataLoader(Options(), Counting(24), batch_size=4, num_workers=workers)

    made = accessor(source, rebatched_size=3, sharing_strategy=FORK)

    assert len(made) == len(source) * source.batch_size // 3 == 8
    assert [b.tolist() for b in made] == [[i, i + 1, i + 2] for i in range(0, 24, 3)]


def test_rebatching_drops_an_incomplete_last_batch_unless_the_loader_keeps_its_own(accessor):
    keeping = DataLoader(Options(), Counting(7), batch_size=2, drop_last=False)

    dropped = accessor(Batches(3, 3, 1), rebatched_size=2, sharing_strategy=FORK)
    kept = accessor(keeping, rebatched_size=2, sharing_strategy=FORK)

    assert [b.tolist() for b in dropped] == [[0, 1], [2, 3], [4, 5]]
    assert [b.tolist() for b in kept] == [[0, 1], [2, 3], [4, 5], [6]]


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("load_indefinitely", [True, False])
@pytest.mark.parametrize("early_preload", [True, False])
@pytest.mark.parametrize("buffer_size", [1, 2, 7])
def test_leaving_a_loop_and_iterating_again_begins_at_the_beginning(
    accessor, load_indefinitely, early_preload, buffer_size
):
    made = accessor(
        Counting(5),
        buffer_size=buffer_size,
        load_indefinitely=load_indefinitely,
        early_preload=early_preload,
        sharing_strategy=FORK,
    )

    for taken in [0, 5, 1, 3, 0, 4, 5, 5]:
        assert numbers(itertools.islice(made, taken)) == list(range(taken))
    assert numbers(made) == [0, 1, 2, 3, 4]


def test_an_old_iteration_does_not_steal_from_a_new_one(accessor):
    made = accessor(Counting(5), sharing_strategy=FORK)
    old = iter(made)
    next(old)
    new = iter(made)

    with pytest.raises(DataError, match="given up") as caught:
        next(old)

    assert caught.value.fix
    assert numbers(new) == [0, 1, 2, 3, 4]


def test_a_finished_iteration_stays_finished(accessor):
    made = accessor(Counting(2), sharing_strategy=FORK)
    iteration = iter(made)

    assert numbers(iteration) == [0, 1]
    assert next(iteration, "over") == "over"
    assert numbers(made) == [0, 1]


def test_a_source_that_can_be_read_only_once_is_empty_afterwards(accessor):
    made = accessor((torch.tensor(i) for i in range(3)), sharing_strategy=FORK)

    assert [numbers(made), numbers(made), numbers(made)] == [[0, 1, 2], [], []]


def test_the_worker_draws_random_numbers_as_this_process_would_have(accessor):
    torch.manual_seed(4)
    made = accessor(Drawing(), sharing_strategy=FORK)
    torch.manual_seed(4)
    expected = [torch.rand(2) for _ in range(6)]

    received = [*made, *made]

    assert all(torch.equal(r, e) for r, e in zip(received, expected, strict=True))


def test_two_workers_started_one_after_the_other_draw_differently(accessor):
    one, other = (accessor(Drawing(), sharing_strategy=FORK) for _ in range(2))

    assert not torch.equal(next(iter(one)), next(iter(other)))


# --- how far ahead --------------------------------------------------------------------------------


def wait_until_loaded(counter, expected):
    """Wait until the worker has loaded so many; the test's own time limit bounds it."""
    while int(counter) < expected:
        os.sched_yield()


def test_one_item_is_ready_before_anybody_iterates(accessor):
    counter = torch.zeros(()).share_memory_()

    accessor(Telling(counter, 50), buffer_size=7, sharing_strategy=FORK)

    assert int(counter) == 1


def test_early_preload_fills_the_ring(accessor):
    counter = torch.zeros(()).share_memory_()

    made = accessor(Telling(counter, 50), buffer_size=7, early_preload=True, sharing_strategy=FORK)

    wait_until_loaded(counter, 7)
    assert numbers(made) == list(range(50))


def test_the_next_epoch_is_loaded_ahead_only_if_asked(accessor):
    ahead, waiting = (torch.zeros(()).share_memory_() for _ in range(2))
    one = accessor(Telling(ahead, 4), sharing_strategy=FORK)
    other = accessor(Telling(waiting, 4), load_indefinitely=False, sharing_strategy=FORK)

    assert numbers(one) == numbers(other) == [0, 1, 2, 3]

    wait_until_loaded(ahead, 4 + 3)
    assert int(waiting) == 4


# --- who owns the tensors -------------------------------------------------------------------------


def test_items_are_the_callers_own_to_keep_and_to_change(accessor):
    made = accessor(Counting(50), sharing_strategy=FORK)

    kept = list(made)
    for tensor in kept:
        tensor += 100

    assert numbers(kept) == list(range(100, 150))
    assert numbers(made) == list(range(50))


def test_zero_copy_items_lie_in_the_ring(accessor):
    made = accessor(Counting(50), zero_copy=True, sharing_strategy=FORK)

    places = {item.data_ptr() for item in made}

    assert len(places) <= 6
    assert numbers(made) == list(range(50))


def test_a_zero_copy_item_outlives_its_accessor(accessor):
    made = accessor(Counting(5), zero_copy=True, sharing_strategy=FORK)
    item = next(iter(made))

    made.terminate()

    assert int(item) == 0


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_empty_source_cannot_start(accessor):
    with pytest.raises(Error, match="worker thread failed to start") as caught:
        accessor(Counting(0), sharing_strategy=FORK)

    assert "empty" in str(caught.value)


@pytest.mark.parametrize("strategy", [FORK, SharingStrategy.ForkServer], ids=str)
def test_an_exception_at_the_first_item_carries_the_original_traceback(accessor, strategy, capsys):
    with pytest.raises(Error, match="worker thread failed to start") as caught:
        accessor(Misbehaving("raise", good=0), sharing_strategy=strategy)

    for text in (str(caught.value), capsys.readouterr().err):
        assert "ValueError: row 2 is rotten" in text
        assert "toy_datasets.py" in text
        assert 'raise ValueError("row 2 is rotten")' in text


def test_an_exception_later_on_is_raised_when_its_turn_comes(accessor):
    made = accessor(Misbehaving("raise"), sharing_strategy=FORK)
    iteration = iter(made)

    assert [int(next(iteration)), int(next(iteration))] == [0, 1]
    with pytest.raises(DataError, match="ValueError: row 2 is rotten"):
        next(iteration)
    with pytest.raises(DataError, match="terminated"):
        next(iter(made))


def test_strict_mode_refuses_nested_items_in_the_worker(accessor):
    with pytest.raises(Error, match="failed to start") as caught:
        accessor(Items([[torch.zeros(1)]]), flat_only=True, sharing_strategy=FORK)

    assert "registerCustomArgParser" in str(caught.value)


def test_the_environment_can_ask_for_strict_mode(accessor, monkeypatch):
    monkeypatch.setenv("POPTORCH_STRICT", "1")

    with pytest.raises(Error, match="failed to start"):
        accessor(Items([[torch.zeros(1)]]), sharing_strategy=FORK)


def test_a_loader_with_a_smaller_last_batch_needs_rebatching(accessor):
    source = DataLoader(Options(), Counting(7), batch_size=2, drop_last=False)
    single = DataLoader(Options(), Counting(7), drop_last=False)

    with pytest.raises(AssertionError, match="rebatched_size") as caught:
        accessor(source, sharing_strategy=FORK)

    assert "rebatched_size=2" in caught.value.fix
    assert len(numbers(accessor(single, sharing_strategy=FORK))) == 7


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"rebatched_size": 1}, "rebatched_size"),
        ({"rebatched_size": 0}, "rebatched_size"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"buffer_size": 1.5}, "buffer_size"),
        ({"miss_sleep_time_in_ms": -1}, "miss_sleep_time_in_ms"),
        ({"timeout": float("nan")}, "timeout"),
        ({"heartbeat": "long"}, "heartbeat"),
        ({"sharing_strategy": "thread"}, "sharing_strategy"),
        ({"dataset": 3}, "dataset"),
    ],
)
def test_a_wrong_argument_is_named_and_comes_with_a_fix(accessor, arguments, names):
    with pytest.raises(AssertionError, match=names) as caught:
        accessor(**({"dataset": Counting(4)} | arguments))

    assert isinstance(caught.value, DataError)
    assert caught.value.fix


def test_a_source_that_cannot_be_sent_says_so(accessor):
    with pytest.raises(DataError, match="cannot be sent to a worker process") as caught:
        accessor([lambda: 0])

    assert "SharingStrategy.Fork" in caught.value.fix


def test_the_process_id_of_the_worker_is_logged(accessor, caplog):
    with caplog.at_level(logging.DEBUG, "poptorch::python"):
        accessor(Counting(2), sharing_strategy=FORK)

    assert "AsynchronousDataAccessor worker process: " in caplog.text
