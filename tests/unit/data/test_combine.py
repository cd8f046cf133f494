"""Joining, cutting and regrouping batches."""

from __future__ import annotations

import pytest
import torch
from tests.unit.data.toy_datasets import Batches, Graph, GraphParser, Point

from pantile.data.combine import count_rows, group, join, rebatch, take_rows
from pantile.errors import DataError
from pantile.program.structure import register_parser


@pytest.fixture
def graph_parser():
    register_parser(Graph, GraphParser())
    yield
    register_parser(Graph, None)


def test_joins_tensors_along_dim_0():
    a, b = torch.rand(2, 3), torch.rand(1, 3)

    assert torch.equal(join([a, b]), torch.cat([a, b]))


def test_joins_nested_batches_and_keeps_their_types():
    first = {"x": torch.zeros(2), "rest": [torch.ones(2), Point(torch.zeros(2), "p")]}
    second = {"x": torch.ones(1), "rest": [torch.ones(1), Point(torch.ones(1), "p")]}

    joined = join([first, second])

    assert joined["x"].tolist() == [0, 0, 1]
    assert isinstance(joined["rest"][1], Point)
    assert joined["rest"][1].x.tolist() == [0, 0, 1]


def test_joins_a_type_of_the_user_through_its_parser(graph_parser):
    batches = [Graph(torch.zeros(1, 2), torch.zeros(3), "g") for _ in range(2)]

    joined = join(batches)

    assert (joined.nodes.shape, joined.edges.shape, joined.name) == ((2, 2), (6,), "g")


def test_collated_strings_follow_their_rows():
    first = [torch.tensor([0, 1]), ["a", "b"]]
    second = [torch.tensor([2]), ["c"]]

    joined = join([first, second])

    assert joined[1] == ["a", "b", "c"]
    assert take_rows(joined, 1, 3)[1] == ["b", "c"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x": torch.zeros(1)}, {"y": torch.zeros(1)}),
        ([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]),
        ((torch.zeros(1), 3), (torch.zeros(1), 4)),
        (torch.zeros(1, 2), torch.zeros(1, 3)),
        (torch.zeros(1), "text"),
    ],
    ids=["keys", "lengths", "constants", "widths", "kinds"],
)
def test_refuses_to_join_batches_that_differ_in_more_than_rows(first, second):
    with pytest.raises(DataError) as caught:
        join([first, second])

    assert caught.value.fix


def test_groups_batches_and_drops_or_keeps_an_incomplete_group():
    batches = Batches(1, 1, 1, 1, 1)

    dropped = [b.tolist() for b in group(batches, 2, drop_last=True)]
    kept = [b.tolist() for b in group(batches, 2, drop_last=False)]

    assert dropped == [[0, 1], [2, 3]]
    assert kept == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("sizes", [(3, 3, 1, 3), (10,), (1,) * 10, (4, 4, 2), (9, 1)])
def test_rebatching_keeps_every_row_in_order(sizes):
    kept = [b.tolist() for b in rebatch(Batches(*sizes), 4, drop_last=False)]
    dropped = [b.tolist() for b in rebatch(Batches(*sizes), 4, drop_last=True)]

    assert kept == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert dropped == kept[:2]


@pytest.mark.parametrize("batch", [torch.tensor(1), (torch.zeros(2), torch.zeros(3)), "text"])
def test_counting_rows_needs_a_common_dim_0(batch):
    with pytest.raises(DataError, match="dim 0"):
        count_rows(batch)
