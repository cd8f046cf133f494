"""A lock between processes that a dead owner cannot keep: flock on a file named for it.

The file exists only while somebody holds or wants the lock. Because its owner unlinks it, a process
that gets the lock checks that the name still leads to the file it locked, and starts again if not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_held: set[int] = set()


@contextlib.contextmanager
def exclusive(
    path: Path,
    *,
    wait_seconds: float,
    notice_after: float,
    notice: Callable[[str], None],
) -> Iterator[bool]:
    """Hold the lock for the `with` block; its value says whether it was got.

    It is not got if somebody else keeps it for `wait_seconds`, or if no lock file can be made; the
    block runs all the same. `notice` is called once, with the owner, when waiting takes long.
    """
    descriptor = _wait(path, wait_seconds, notice_after, notice)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(path, descriptor)


def sweep_locks(folder: Path) -> None:
    """Remove the lock files that dead owners left."""
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            descriptor = _try_lock(path)
            if descriptor is not None:
                _release(path, descriptor)


def _wait(
    path: Path, wait_seconds: float, notice_after: float, notice: Callable[[str], None]
) -> int | None:
    start, pause, told = time.monotonic(), 0.01, False
    while True:
        try:
            descriptor = _try_lock(path)
        except OSError:
            return None
        waited = time.monotonic() - start
        if descriptor is not None or waited >= wait_seconds:
            return descriptor
        if waited >= notice_after and not told:
            notice(_owner(path))
            told = True
        time.sleep(min(pause, max(0.0, wait_seconds - waited)))
        pause = min(pause * 1.5, 0.2)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another one does."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                _held.add(descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _release(path: Path, descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(descriptor)


def _owner(path: Path) -> str:
    try:
        written = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        written = ""
    return f"process {written}" if written.isdecimal() else "another process"


def _forget_inherited() -> None:
    """In a forked child: close the parent's locks, else they would outlive the parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_inherited)
