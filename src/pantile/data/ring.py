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

from pantile.data.packing import Packed, unpack
from pantile.data.shared import SharedFile
from pantile.errors import DataError

_PAGE = mmap.ALLOCATIONGRANULARITY
_ROW = struct.Struct("<QQQ")  # state, offset, capacity
_ROWS = 4096 // _ROW.size
# To take an item and read it once: 64 KB, 0.05 ms copied and 0.07 ms mapped; 1 MB, 0.15 ms either
# way; 16 MB, 2.8 ms copied and 1.8 ms mapped.
_WORTH_MAPPING = 1 << 20
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

    def mark(self, row: int, state: State) -> None:
        """Pass a row on."""
        struct.pack_into("<Q", self._table, row * _ROW.size, state)

    def write(self, packed: Packed) -> int:
        """Write an item into a free row, and say which."""
        row, offset = self._claim(packed.size)
        packed.write(self._map(offset + packed.size), offset)
        return row

    def lend(self, row: int, size: int) -> Any:
        """The item of a row. Its tensors lie in the row until that is free and written again."""
        _, offset, _ = self._read(row)
        return unpack(self._map(offset + size), offset, copy=False)

    def take(self, row: int, size: int) -> Any:
        """The item of a row, as the caller's own; the row is free when nobody needs it any more."""
        if size < _WORTH_MAPPING or self._leases >= _MOST_LEASES:
            _, offset, _ = self._read(row)
            item = unpack(self._map(offset + size), offset, copy=True)
            self.mark(row, State.FREE)
            return item
        _, offset, _ = self._read(row)
        memory = mmap.mmap(self._file.fd, -(-size // _PAGE) * _PAGE, offset=offset)
        self._leases += 1
        # Tensors refer to the mapping they lie in: it ends with the last of them.
        weakref.finalize(memory, self._end_lease, row).atexit = False
        return unpack(memory, 0, copy=False)

    def recover(self) -> None:
        """Free what an earlier writer of this ring wrote and nobody was told of."""
        for row in range(_ROWS):
            if self._read(row)[0] == State.WRITTEN:
                self.mark(row, State.FREE)

    def close(self) -> None:
        """Let go of the descriptor; items that were taken keep their memory."""
        self._memory = self._table
        self._file.close()

    def _end_lease(self, row: int) -> None:
        self._leases -= 1
        self.mark(row, State.FREE)

    def _claim(self, size: int) -> tuple[int, int]:
        """A free row with room for `size` bytes, and where it lies."""
        rows = [self._read(row) for row in range(_ROWS)]
        free = [n for n, (state, _, _) in enumerate(rows) if state == State.FREE]
        if not free:
            raise DataError(
                f"{_ROWS} items of one worker are waiting to be taken",
                fix="lower buffer_size or prefetch_factor",
            )
        row = next((n for n in free if rows[n][2] >= size), free[0])
        _, offset, capacity = rows[row]
        if capacity < size:
            # Doubling bounds what earlier, smaller places waste by the size of the last one.
            offset = max(_PAGE, max(o + c for _, o, c in rows))
            capacity = -(-max(size, 2 * capacity) // _PAGE) * _PAGE
            os.ftruncate(self._file.fd, offset + capacity)
        _ROW.pack_into(self._table, row * _ROW.size, State.WRITTEN, offset, capacity)
        return row, offset

    def _map(self, end: int) -> mmap.mmap:
        """The memory up to at least `end`. It stays valid as long as somebody refers to it."""
        if end > len(self._memory):
            self._memory = mmap.mmap(self._file.fd, os.fstat(self._file.fd).st_size)
        return self._memory

    def _read(self, row: int) -> tuple[int, int, int]:
        state, offset, capacity = _ROW.unpack_from(self._table, row * _ROW.size)
        return state, offset, capacity
