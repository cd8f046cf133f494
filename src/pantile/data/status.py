"""A worker's signs of life, in a page its parent can read at any time: heartbeat, action, item."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum

from pantile.data.shared import SharedFile

_SIZE = 4096
_FORMAT = struct.Struct("<QQQQ")  # heartbeat, action, epoch, item


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


class StatusPage:
    """One process's view of the page. The worker writes, the parent reads."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        if os.fstat(file.fd).st_size < _SIZE:
            os.ftruncate(file.fd, _SIZE)
        self._page = mmap.mmap(file.fd, _SIZE)

    def read(self) -> Status:
        """What the worker said last."""
        heartbeat, action, epoch, item = _FORMAT.unpack_from(self._page)
        return Status(heartbeat, Action(action), epoch, item)

    def beat(self) -> None:
        """Say that this process is alive."""
        (heartbeat,) = struct.unpack_from("<Q", self._page)
        struct.pack_into("<Q", self._page, 0, heartbeat + 1)

    def say(self, action: Action, epoch: int, item: int) -> None:
        """Say what this process does now."""
        struct.pack_into("<QQQ", self._page, 8, action, epoch, item)

    def close(self) -> None:
        """Let go of the descriptor; what was said can still be read."""
        self._file.close()
