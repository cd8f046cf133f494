"""Shared memory that torch's loader workers fill themselves.

    torch's worker k ── writes the batch ──► lane k ──────────────► parent
              └── a token: where it lies ──► loader's worker ── ITEM ──┘

Without lanes a batch is moved twice more on its way through the loader's worker, and torch puts it
into new shared memory every time: with one worker that is a third of the throughput.

Each lane is a file with a table in its first page: where its rows lie and whether they are in use.
Who owns a row is clear at every moment, so nothing needs a lock:

    FREE ──torch's worker──► WRITTEN ──loader's worker──► HANDED ──parent──► FREE
                                └── the token was dropped ──► FREE
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import default_collate, get_worker_info

from pantile.data.packing import pack
from pantile.data.ring import SharedFile
from pantile.errors import DataError

_PAGE = 4096
_ROW = struct.Struct("<QQQ")  # state, offset, capacity
_ROWS = _PAGE // _ROW.size


class State(IntEnum):
    """Who may touch a row."""

    FREE = 0
    WRITTEN = 1
    HANDED = 2


class Lane:
    """One process's view of a lane."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        if os.fstat(file.fd).st_size < _PAGE:
            os.ftruncate(file.fd, _PAGE)
        self._table = mmap.mmap(file.fd, _PAGE)
        self._memory = self._table

    def mark(self, row: int, state: State) -> None:
        """Pass a row on."""
        struct.pack_into("<Q", self._table, row * _ROW.size, state)

    def memory(self, end: int) -> mmap.mmap:
        """The memory up to at least `end`."""
        if end > len(self._memory):
            self._memory = mmap.mmap(self._file.fd, os.fstat(self._file.fd).st_size)
        return self._memory

    def recover(self) -> None:
        """Free what an earlier writer of this lane wrote and nobody was told of."""
        for row in range(_ROWS):
            if self._read(row)[0] == State.WRITTEN:
                self.mark(row, State.FREE)

    def claim(self, size: int) -> tuple[int, int]:
        """A row with room for `size` bytes, and where it lies."""
        rows = [self._read(row) for row in range(_ROWS)]
        free = [n for n, (state, _, _) in enumerate(rows) if state == State.FREE]
        if not free:
            raise DataError(
                f"{_ROWS} batches of one worker are waiting to be taken",
                fix="lower prefetch_factor or buffer_size",
            )
        row = next((n for n in free if rows[n][2] >= size), free[0])
        _, offset, capacity = rows[row]
        if capacity < size:
            offset = max([_PAGE, *(o + c for _, o, c in rows)])
            capacity = -(-max(size, 2 * capacity) // _PAGE) * _PAGE
            os.ftruncate(self._file.fd, offset + capacity)
        _ROW.pack_into(self._table, row * _ROW.size, State.WRITTEN, offset, capacity)
        return row, offset

    def close(self) -> None:
        """Let go of it; tensors that lie in it keep their memory."""
        self._memory = self._table
        self._file.close()

    def _read(self, row: int) -> tuple[int, int, int]:
        state, offset, capacity = _ROW.unpack_from(self._table, row * _ROW.size)
        return state, offset, capacity


@dataclass(frozen=True)
class Place:
    """Where a batch lies."""

    lane: int
    row: int
    offset: int
    size: int

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arrival, (self.lane, self.row, self.offset, self.size))


class Arrival:
    """A place as the loader's worker receives it. If torch drops it unseen, the row is free."""

    lanes: tuple[Lane, ...] = ()  # of the process; set once, by the loader's worker

    def __init__(self, lane: int, row: int, offset: int, size: int) -> None:
        self.place = Place(lane, row, offset, size)
        self._is_mine = True

    def hand_over(self) -> Place:
        """The parent's from now on."""
        self._is_mine = False
        self.lanes[self.place.lane].mark(self.place.row, State.HANDED)
        return self.place

    def __del__(self) -> None:
        if self._is_mine and self.lanes:
            self.lanes[self.place.lane].mark(self.place.row, State.FREE)


class IntoLane:
    """A `collate_fn` for torch's workers: collate, write to the worker's lane, return the place."""

    def __init__(
        self, collate: Callable[[Any], Any], files: tuple[SharedFile, ...], *, flat_only: bool
    ) -> None:
        self._collate = collate
        self._files = files
        self._flat_only = flat_only
        self._lane: Lane | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lane": None}

    def __call__(self, samples: Any) -> Place:
        worker = get_worker_info()
        if worker is None:
            raise DataError("a lane can be written only by a worker of torch's loader")
        packed = pack(self._collated(samples), flat_only=self._flat_only)
        if self._lane is None:
            self._lane = Lane(self._files[worker.id])
            self._lane.recover()
        row, offset = self._lane.claim(packed.size)
        packed.write(self._lane.memory(offset + packed.size), offset)
        return Place(worker.id, row, offset, packed.size)

    def _collated(self, samples: Any) -> Any:
        if self._collate is not default_collate:
            return self._collate(samples)
        # In a worker, torch's function puts every batch into new shared memory. It is not needed.
        hidden, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return default_collate(samples)
        finally:
            torch_worker._worker_info = hidden
