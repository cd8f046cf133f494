from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import default_collate

from pantile.data.draft import collate_into
from pantile.data.packing import Packer
from pantile.data.ring import Ring
from pantile.data.shared import SharedFile


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.fixture
def ends():
    file = SharedFile.create(in_memory=True)
    return Ring(file), Ring(file)


def send(writer, samples):
    """Collate into the writer's draft and write it: what arrives, and how much lay there."""
    packer = Packer()
    draft = writer.draft()
    item = collate_into(draft, samples)
    packed = packer.pack(item, draft)
    in_place = [draft is not None and draft.place_of(t) is not None for t in packed.tensors]
    return writer.write(packed), packed.size, in_place


SAMPLES = {
    "images": [(torch.full((3, 8, 8), float(i)), i) for i in range(5)],
    "tokens": [{"ids": torch.arange(9) + i, "mask": torch.arange(9) > i} for i in range(4)],
    "nested": [[torch.ones(2) * i, (torch.zeros(1), torch.ones(2) * i)] for i in range(3)],
    "named": [Pair(torch.ones(3) * i, torch.zeros(1)) for i in range(3)],
    "numbers": [1.5, 2.5],
    "empty": [torch.ones(0, 2), torch.ones(0, 2)],
    "promoted": [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    "with gradients": [torch.ones(2, requires_grad=True) * i for i in range(3)],
    "strided": [torch.arange(12.0).reshape(3, 4).t() for _ in range(2)],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_arrives_is_what_default_collate_makes(name, ends):
    writer, reader = ends
    expected = default_collate(SAMPLES[name])

    for _ in range(3):  # the first one is not drafted: its size was not known
        row, size, _ = send(writer, SAMPLES[name])
        assert_close(reader.take(row, size), expected)


def test_a_batch_like_the_one_before_is_stacked_into_its_row(ends):
    writer, reader = ends
    batches = [[(torch.full((2, 3), float(i + k)), i) for i in range(4)] for k in range(3)]

    for number, samples in enumerate(batches):
        row, size, in_place = send(writer, samples)
        assert in_place[0] is (number > 0)
        assert_close(reader.take(row, size), default_collate(samples))


@pytest.mark.parametrize("sizes", [(4, 400, 4), (400, 4, 4000)])
def test_batches_of_changing_sizes_move_to_rows_they_fit_in(sizes, ends):
    writer, reader = ends
    rows = set()
    for size in (*sizes, *sizes):
        samples = [(torch.full((size, 8), float(i)), torch.arange(size)) for i in range(3)]
        row, bytes_, _ = send(writer, samples)
        rows.add(row)
        assert_close(reader.take(row, bytes_), default_collate(samples))

    assert len(rows) <= 2


def test_a_description_too_long_for_its_room_does_no_harm(ends):
    writer, reader = ends
    samples = [{f"a feature with a long name {i}": torch.ones(3) * i for i in range(40)}] * 2

    for _ in range(3):
        row, size, _ = send(writer, samples)
        assert_close(reader.take(row, size), default_collate(samples))


def test_a_draft_that_is_given_up_is_used_again(ends):
    writer, reader = ends
    samples = [torch.ones(4)] * 2
    row, size, _ = send(writer, samples)
    reader.take(row, size)

    first = writer.draft()
    collate_into(first, samples)
    second = writer.draft()

    assert second is first and second.used == 0
