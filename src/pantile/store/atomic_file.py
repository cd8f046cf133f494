"""Write a file so that a crash leaves the old one or the new one, never half of one.

    .name.<16 hex digits>.pantile-tmp     written, then fsync
               │ rename
    name                                  then fsync of the folder, so that the rename lasts

The writer holds a lock (flock) on its temporary file. A temporary file nobody has locked belongs to
a writer that died; the next write to the folder removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from pantile.errors import StoreError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.pantile-tmp", re.S)
_AT_ONCE = 1 << 24


def write_atomically(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Make `path` a file of these bytes with mode 0600, in place of what was there."""
    sweep(path.parent)
    try:
        _write(path, parts)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", fix=advice(error)) from error


def sweep(folder: Path) -> int:
    """Remove what writers that died left in the folder; returns how many files that were."""
    try:
        names = [name for name in os.listdir(folder) if _TEMPORARY.fullmatch(name)]
    except OSError:
        return 0  # no such folder, or not ours to list: nothing to clean up
    return sum(_removed_if_abandoned(folder / name) for name in names)


def advice(error: OSError) -> str:
    """What to do about a failed file operation."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space there, or choose a folder on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a folder you may use, or change its permissions"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
        return "check the path"
    return "check the disk, or choose another folder"


def _write(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    temporary, descriptor = _create(path)
    try:
        try:
            for part in parts:
                _write_all(descriptor, memoryview(part).cast("B"))
            os.fsync(descriptor)
            os.rename(temporary, path)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _create(path: Path) -> tuple[Path, int]:
    """A new, empty, locked file beside `path`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        # The final name is cut so that the temporary one is not too long for the file system.
        stem = os.fsencode(path.name)[:200].decode("utf-8", "ignore")
        temporary = path.parent / f".{stem}.{secrets.token_hex(8)}.pantile-tmp"
        descriptor = os.open(temporary, flags, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody sweeps either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # swept between open and flock


def _write_all(descriptor: int, data: memoryview) -> None:
    position = 0
    while position < len(data):
        position += os.write(descriptor, data[position : position + _AT_ONCE])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _removed_if_abandoned(temporary: Path) -> bool:
    try:
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False  # just renamed, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temporary)
    except OSError:
        return False  # its writer is alive, or has just finished
    finally:
        os.close(descriptor)
    return True
