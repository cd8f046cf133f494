"""What a worker and its parent say to each other: a few numbers, always as many bytes.

parent -> worker   RUN(epoch)      load this epoch now; give up an older one
                   RELEASE         an item was taken: there is room for another
                   STOP
worker -> parent   ITEM(epoch, ring, row, size)
                   END(epoch)      the epoch is complete
                   FAILED          user code raised; the traceback is in the black box
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

_FORMAT = struct.Struct("<5Q")


class Kind(IntEnum):
    """The kinds of message."""

    RUN = 1
    RELEASE = 2
    STOP = 3
    ITEM = 4
    END = 5
    FAILED = 6


class Channel(Protocol):
    """The part of a multiprocessing connection that messages need."""

    def send_bytes(self, buf: bytes) -> None: ...
    def recv_bytes(self, maxlength: int | None = None) -> bytes: ...


@dataclass(frozen=True)
class Message:
    """One message; what the numbers mean depends on its kind."""

    kind: Kind
    epoch: int = 0
    ring: int = 0
    row: int = 0
    size: int = 0

    def send(self, channel: Channel) -> None:
        """Send it; so few bytes never block."""
        numbers = (self.kind, self.epoch, self.ring, self.row, self.size)
        channel.send_bytes(_FORMAT.pack(*numbers))

    @classmethod
    def receive(cls, channel: Channel) -> Message:
        """Take the next message; EOFError if the other side is gone."""
        kind, *numbers = _FORMAT.unpack(channel.recv_bytes(_FORMAT.size))
        return cls(Kind(kind), *numbers)
