"""Torch's workers writing into rings of their own."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import TensorDataset

from pantile.data.lanes import Arrival, IntoRing, Place
from pantile.data.packing import Packer
from pantile.data.ring import Ring
from pantile.data.shared import SharedFile
from pantile.enums import DataLoaderMode, SharingStrategy
from pantile.errors import DataError

ASYNC = {
    "mode": DataLoaderMode.Async,
    "async_options": {"sharing_strategy": SharingStrategy.Fork},
}


@pytest.fixture
def ring(monkeypatch):
    made = Ring(SharedFile.create(in_memory=True))
    monkeypatch.setattr(Arrival, "rings", (made,))
    yield made
    made.close()


def test_a_token_that_is_dropped_frees_its_row(ring):
    packed = Packer().pack(torch.zeros(4))
    token = Arrival(0, ring.write(packed), packed.size)
    row = token.place.row

    del token

    assert ring.write(packed) == row


def test_a_token_that_was_handed_over_does_not(ring):
    packed = Packer().pack(torch.zeros(4))
    place = Arrival(0, ring.write(packed), packed.size).hand_over()

    assert place == Place(0, 0, packed.size)
    assert ring.write(packed) != place.row


def test_only_torchs_workers_may_write():
    with pytest.raises(DataError, match="only by one of them"):
        IntoRing(list, (), flat_only=False)([torch.zeros(1)])


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("width", [3, 100_000], ids=["copied", "mapped"])
def test_epochs_left_early_lose_no_rows_and_mix_none_up(loader, persistent, width):
    data = TensorDataset(torch.arange(40).unsqueeze(1).expand(40, width), torch.arange(40))
    made = loader(data, batch_size=2, num_workers=2, persistent_workers=persistent, **ASYNC)
    files = [ring._file for ring in made._accessor._link.rings]
    expected = [[i, i + 1] for i in range(0, 40, 2)]

    for taken in [3, 20, 0, 1, 7, 20, 2, 11]:
        kept = []
        for (x, y), _ in zip(made, range(taken), strict=False):
            assert torch.equal(x[:, -1], y)
            kept.append(y)
        assert [y.tolist() for y in kept] == expected[:taken]

    row = 2 * width * 8 + 4096
    assert sum(os.fstat(file.fd).st_size for file in files) < 60 * row


def test_the_same_batches_as_without_lanes_for_any_collate(loader):
    data = [torch.arange(i + 1) for i in range(12)]

    def collate(rows):
        return {"rows": rows, "sizes": [len(row) for row in rows]}

    direct = loader(data, batch_size=3, num_workers=2, collate_fn=collate, **ASYNC)

    for got, start in zip(direct, range(0, 12, 3), strict=True):
        assert got["sizes"] == [start + 1, start + 2, start + 3]
        assert all(torch.equal(g, d) for g, d in zip(got["rows"], data[start:], strict=False))


def test_an_exception_in_torchs_worker_carries_its_traceback(loader):
    def collate(rows):
        raise KeyError("no such column")

    with pytest.raises(DataError, match="failed to start") as caught:
        loader([torch.zeros(1)] * 4, batch_size=2, num_workers=1, collate_fn=collate, **ASYNC)

    assert "no such column" in str(caught.value)
    assert "test_lanes.py" in str(caught.value)
