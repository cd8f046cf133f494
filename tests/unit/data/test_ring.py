"""Rows in shared memory: room, ownership, growth."""

from __future__ import annotations

import pytest
import torch

from pantile.data.packing import Packer
from pantile.data.ring import Ring, State
from pantile.data.shared import SharedFile
from pantile.errors import DataError

SMALL, BIG = torch.arange(8), torch.arange(1 << 17)


@pytest.fixture(params=[True, False], ids=["memory", "file"])
def ends(request):
    """The same ring, as its writer and as its reader see it."""
    file = SharedFile.create(in_memory=request.param)
    writer, reader = Ring(file), Ring(file)
    yield writer, reader
    writer.close()


@pytest.mark.parametrize("sent", [SMALL, BIG], ids=["small", "big"])
def test_what_is_written_can_be_taken(ends, sent):
    writer, reader = ends
    packed = Packer().pack(sent)

    row = writer.write(packed)

    assert torch.equal(reader.take(row, packed.size), sent)


@pytest.mark.parametrize("sent", [SMALL, BIG], ids=["small", "big"])
def test_a_taken_item_is_not_changed_by_what_is_written_later(ends, sent):
    writer, reader = ends
    packed = Packer().pack(sent)
    taken = [reader.take(writer.write(packed), packed.size) for _ in range(10)]

    for tensor in taken:
        tensor += 1
    for _ in range(10):
        writer.write(Packer().pack(torch.zeros_like(sent)))

    assert all(torch.equal(tensor, sent + 1) for tensor in taken)


def test_rows_are_used_again_when_nobody_holds_their_items(ends):
    writer, reader = ends
    packed = Packer().pack(BIG)
    rows = set()

    for _ in range(50):
        row = writer.write(packed)
        rows.add(row)
        item = reader.take(row, packed.size)
        assert torch.equal(item, BIG)
        del item

    assert len(rows) == 1


def test_part_of_an_item_keeps_its_row(ends):
    writer, reader = ends
    packed = Packer().pack((BIG, BIG + 1))
    part = reader.take(writer.write(packed), packed.size)[1][5:7]

    writer.write(Packer().pack((BIG * 0, BIG * 0)))

    assert part.tolist() == [6, 7]


def test_a_row_grows_with_its_items(ends):
    writer, reader = ends

    for count in [1, 10, 100_000, 3, 1_000_000]:
        packed = Packer().pack(torch.arange(count))
        row = writer.write(packed)
        lent = reader.lend(row, packed.size)
        assert torch.equal(lent, torch.arange(count))
        reader.mark(row, State.FREE)


def test_a_successor_frees_only_what_was_never_handed_over(ends):
    writer, successor = ends
    packed = Packer().pack(SMALL)
    lost, handed = writer.write(packed), writer.write(packed)
    writer.mark(handed, State.HANDED)

    successor.recover()

    assert [successor.write(packed), successor.write(packed)] == [lost, handed + 1]


def test_a_full_ring_says_what_to_lower(ends):
    writer, _ = ends
    packed = Packer().pack(SMALL)

    with pytest.raises(DataError, match="waiting to be taken") as caught:
        list(map(writer.write, [packed] * 1000))

    assert "prefetch_factor" in caught.value.fix
