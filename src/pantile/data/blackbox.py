"""What a worker leaves behind when it fails: tracebacks and, from `faulthandler`, stacks.

It is a file without a name that both processes hold, because a crashing process can still write to
a descriptor when it can do nothing else.
"""

from __future__ import annotations

import os

from pantile.data.shared import SharedFile

_TAIL = 8192  # as much as an error message shows
_DUMP = 1 << 20  # a forked worker's stack holds its parent's, and names every extension module
_OURS = f"{os.sep}pantile{os.sep}data{os.sep}"


class BlackBox:
    """The parent's view of the file."""

    def __init__(self) -> None:
        self.file = SharedFile.create(in_memory=True)

    @property
    def size(self) -> int:
        """How much was written so far."""
        return os.fstat(self.file.fd).st_size

    def read(self, start: int = 0, *, limit: int = _TAIL) -> str:
        """What was written from `start` on, or the last of it."""
        start = max(start, self.size - limit)
        return os.pread(self.file.fd, self.size - start, start).decode(errors="replace")

    def frames(self, start: int = 0) -> str:
        """The user's part of the stacks that were written from `start` on."""
        return user_frames(self.read(start, limit=_DUMP))

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


def user_frames(dump: str) -> str:
    """A dump of `faulthandler`, most recent call first, down to where our own frames begin.

    Below them is only how the worker was started: with a fork, the parent's whole stack.
    """
    kept = []
    for block in dump.split("\n\n"):
        if block.startswith("Extension modules:"):
            continue
        head, *frames = block.splitlines() or [""]
        mine = [n for n, line in enumerate(frames) if _OURS in line]
        frames = frames[: mine[0]] if mine else frames
        if frames or not mine:
            kept.append("\n".join([head, *frames]))
    return "\n\n".join(kept).strip()
