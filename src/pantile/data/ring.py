"""A ring of rows in shared memory: one process writes items into it, another takes them out.

    first page   row │ state │ offset │ capacity      then   row 0 │ row 2 │ row 1 (grown) │ …

Who may touch a row is clear at every moment, so nothing needs a lock:

    FREE ──writer──► WRITTEN ──loader's worker──► HANDED ──parent──► FREE

Rows grow: an item that does not fit gets a new place at the end.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from enum import IntEnum
from typing import Any

from pantile.data.draft import Draft
from pantile.data.packing import Packed, Unpacker
from pantile.data.shared import SharedFile
from pantile.errors import DataError

_PAGE = mmap.ALLOCATIONGRANULARITY
_ROW = struct.Struct("<QQQ")  # state, offset, capacity
_ROWS = 4096 // _ROW.size
# Below, copying is cheaper than looking after who still needs the row.
_WORTH_LENDING = 1 << 16
# As many items as a loop holds at once, and one more. Who keeps all items gets copies: rows in use
# cannot be written again.
_MOST_LEASES = 3


class State(IntEnum):
    """Who may touch a row."""

    FREE = 0
    WRITTEN = 1
    HANDED = 2


class Ring:
    """One process's view of the memory."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        if os.fstat(file.fd).st_size < _PAGE:
            os.ftruncate(file.fd, _PAGE)
        self._table = mmap.mmap(file.fd, _PAGE)
        self._memory = self._table
        self._leases = 0
        self._draft: Draft | None = None
        self._last_size = 0
        self._places: dict[int, tuple[int, int, mmap.mmap]] = {}
        self._unpacker = Unpacker()

    def mark(self, row: int, state: State) -> None:
        """Pass a row on."""
        struct.pack_into("<Q", self._table, row * _ROW.size, state)

    def draft(self) -> Draft | None:
        """A row to fill before `write`, if there was an item to judge its size by."""
        if self._draft is None and self._last_size > 0:
            row, offset, capacity = self._claim(self._last_size)
            self._draft = Draft(self._map(offset + capacity), row, offset, capacity)
        if self._draft is not None:
            self._draft.used = 0
        return self._draft

    @property
    def draft_in_use(self) -> Draft | None:
        """The row that is being filled."""
        return self._draft

    def write(self, packed: Packed) -> int:
        """Write an item into a free row, and say which."""
        self._last_size = packed.size
        draft, self._draft = self._draft, None
        if draft is not None and packed.size <= draft.capacity:
            is_its = packed.draft is draft
            if is_its or draft.used == 0:  # else it may hold what is to be written elsewhere
                memory = self._map(draft.offset + packed.size)
                packed.write(memory, draft.offset, into_draft=is_its)
                return draft.row
        row, offset, _ = self._claim(packed.size)
        packed.write(self._map(offset + packed.size), offset)
        if draft is not None:  # only now is what lies in it not needed any more
            self.mark(draft.row, State.FREE)
        return row

    def lend(self, row: int, size: int) -> Any:
        """The item of a row. Its tensors lie in the row until that is free and written again."""
        _, offset, _ = self._read(row)
        return self._unpacker.unpack(self._map(offset + size), offset, copy=False)

    def take(self, row: int, size: int) -> Any:
        """The item of a row, as the caller's own; the row is free when nobody needs it any more."""
        if size < _WORTH_LENDING or self._leases >= _MOST_LEASES:
            _, offset, _ = self._read(row)
            item = self._unpacker.unpack(self._map(offset + size), offset, copy=True)
            self.mark(row, State.FREE)
            return item
        # Tensors refer to the view they were made from: it ends with the last of them.
        view = memoryview(self._place(row))
        self._leases += 1
        weakref.finalize(view, self._end_lease, row).atexit = False
        return self._unpacker.unpack(view, 0, copy=False)

    def recover(self) -> None:
        """Free what an earlier writer of this ring wrote and nobody was told of."""
        for row in range(_ROWS):
            if self._read(row)[0] == State.WRITTEN:
                self.mark(row, State.FREE)

    def close(self) -> None:
        """Let go of the descriptor; items that were taken keep their memory."""
        self._memory = self._table
        self._places.clear()
        self._file.close()

    def _end_lease(self, row: int) -> None:
        self._leases -= 1
        self.mark(row, State.FREE)

    def _place(self, row: int) -> mmap.mmap:
        """A mapping of one row that is kept: a new one would be new pages for every item."""
        _, offset, capacity = self._read(row)
        known = self._places.get(row)
        if known is None or known[:2] != (offset, capacity):
            known = (offset, capacity, mmap.mmap(self._file.fd, capacity, offset=offset))
            self._places[row] = known
        return known[2]

    def _claim(self, size: int) -> tuple[int, int, int]:
        """A free row with room for `size` bytes, where it lies, and its capacity."""
        free, end = None, _PAGE
        for row in range(_ROWS):
            state, offset, capacity = self._read(row)
            end = max(end, offset + capacity)
            if state == State.FREE:
                free = row if free is None else free
                if capacity >= size:
                    self.mark(row, State.WRITTEN)
                    return row, offset, capacity
                if capacity == 0:  # rows are used in order: neither are those that follow
                    break
        if free is None:
            raise DataError(
                f"{_ROWS} items of one worker are waiting to be taken",
                fix="lower buffer_size or prefetch_factor",
            )
        # Doubling bounds what earlier, smaller places waste by the size of the last one.
        capacity = -(-max(size, 2 * self._read(free)[2]) // _PAGE) * _PAGE
        os.ftruncate(self._file.fd, end + capacity)
        _ROW.pack_into(self._table, free * _ROW.size, State.WRITTEN, end, capacity)
        return free, end, capacity

    def _map(self, end: int) -> mmap.mmap:
        """The memory up to at least `end`. It stays valid as long as somebody refers to it."""
        if end > len(self._memory):
            self._memory = mmap.mmap(self._file.fd, os.fstat(self._file.fd).st_size)
        return self._memory

    def _read(self, row: int) -> tuple[int, int, int]:
        state, offset, capacity = _ROW.unpack_from(self._table, row * _ROW.size)
        return state, offset, capacity
