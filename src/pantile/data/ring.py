"""Anonymous shared memory with a few slots, filled by a worker and emptied by its parent.

    page 0    heartbeat, and what the worker is doing      (read by the parent while it waits)
    then      slot 0 │ slot 2 │ slot 1 (grown) │ …         (each with the item that lies in it)

The memory has no name: it is a descriptor both processes hold (a memfd, or an unlinked file), so
however they end, nothing is left behind, and the size of /dev/shm does not matter. Slots grow: an
item that does not fit gets a new place at the end. Who may touch a slot is settled by messages
(see `messages`), never by the memory itself.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_PAGE = 4096
_STATUS = struct.Struct("<QQQQ")  # heartbeat, action, epoch, item


class Action(IntEnum):
    """What a worker is doing; it tells in an error where the worker was."""

    STARTING = 0
    LOADING = 1
    WRITING = 2
    WAITING = 3

    def describe(self, epoch: int, item: int) -> str:
        """In words."""
        place = f"item {item} of epoch {epoch}"
        return {
            Action.STARTING: "starting",
            Action.LOADING: f"loading {place}",
            Action.WRITING: f"writing {place} to shared memory",
            Action.WAITING: f"waiting for room for {place}",
        }[self]


@dataclass(frozen=True)
class Status:
    """The worker's last sign of life."""

    heartbeat: int
    action: Action
    epoch: int
    item: int

    def __str__(self) -> str:
        return self.action.describe(self.epoch, self.item)


class SharedFile:
    """A file without a name that can be handed to a child process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, *, in_memory: bool) -> SharedFile:
        """A new one, in memory or, for more than memory holds, on disk."""
        if in_memory and hasattr(os, "memfd_create"):
            return cls(os.memfd_create("pantile"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return (_adopt, (DupFd(self.fd),))


def _adopt(duplicate: Any) -> SharedFile:
    return SharedFile(duplicate.detach())


class Ring:
    """One process's view of the shared memory."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        if os.fstat(file.fd).st_size < _PAGE:
            os.ftruncate(file.fd, _PAGE)
        self._status = mmap.mmap(file.fd, _PAGE)
        self._memory = self._status

    def read_status(self) -> Status:
        """What the worker said last."""
        heartbeat, action, epoch, item = _STATUS.unpack_from(self._status)
        return Status(heartbeat, Action(action), epoch, item)

    def beat(self) -> None:
        """Say that this process is alive."""
        (heartbeat,) = struct.unpack_from("<Q", self._status)
        struct.pack_into("<Q", self._status, 0, heartbeat + 1)

    def say(self, action: Action, epoch: int, item: int) -> None:
        """Say what this process does now."""
        struct.pack_into("<QQQ", self._status, 8, action, epoch, item)

    def memory(self, end: int) -> mmap.mmap:
        """The memory up to at least `end`. It stays valid as long as somebody refers to it."""
        if end > len(self._memory):
            self._memory = mmap.mmap(self._file.fd, os.fstat(self._file.fd).st_size)
        return self._memory

    def close(self) -> None:
        """Let go of it; tensors that still lie in it keep their memory."""
        self._memory = self._status
        self._file.close()


class Slots:
    """The writer's side: where each slot lies and which are free."""

    def __init__(self, ring: Ring, file: SharedFile, count: int) -> None:
        self._ring = ring
        self._file = file
        self._places: dict[int, tuple[int, int]] = dict.fromkeys(range(count), (0, 0))
        self._end = _PAGE
        self.free = list(range(count))

    def reserve(self, slot: int, size: int) -> tuple[mmap.mmap, int]:
        """Memory for `size` bytes in the slot, and where in the memory they begin."""
        offset, capacity = self._places[slot]
        if self._end == _PAGE:
            self._lay_out(-(-size // _PAGE) * _PAGE)
            offset, capacity = self._places[slot]
        if size > capacity:
            # Doubling bounds what earlier, smaller places waste by the size of the last one.
            capacity = -(-max(size, 2 * capacity) // _PAGE) * _PAGE
            offset = self._end
            self._end += capacity
            os.ftruncate(self._file.fd, self._end)
            self._places[slot] = (offset, capacity)
        return self._ring.memory(offset + size), offset

    def _lay_out(self, capacity: int) -> None:
        """Give all slots the size of the first item, which most often is the size of all items."""
        for slot in self._places:
            self._places[slot] = (self._end, capacity)
            self._end += capacity
        os.ftruncate(self._file.fd, self._end)
