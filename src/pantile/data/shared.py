"""Shared memory without a name: a descriptor both processes hold (a memfd, or an unlinked file).

However the processes end, nothing is left behind; and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any


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
