"""Which files may be loaded as code: the rule of ssh.

A file is trusted if it and its folder belong to the current user (or root), if nobody else may
write to them, and if neither is a symbolic link. What is checked is the open file, not its name, so
it cannot be exchanged between the check and the reading.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from pantile.errors import StoreError, Untrusted
from pantile.store.atomic_file import advice

_LINK = (errno.ELOOP, errno.ENOTDIR)


def check_trusted(path: Path) -> None:
    """Raise `Untrusted` unless the file at `path` may be loaded as code."""
    try:
        os.close(open_trusted(path))
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}", fix="check the path") from error


def check_folder(folder: Path) -> None:
    """Raise `Untrusted` unless only the current user (or root) can put files into the folder."""
    os.close(_open_folder(folder))


def open_trusted(path: Path) -> int:
    """A descriptor of the file, if it may be loaded as code. FileNotFoundError if there is none."""
    folder = _open_folder(path.parent)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refusal(path, error) from error
    finally:
        os.close(folder)
    return _kept_if_private(descriptor, path, stat.S_IFREG)


def _open_folder(folder: Path) -> int:
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refusal(folder, error) from error
    return _kept_if_private(descriptor, folder, stat.S_IFDIR)


def _kept_if_private(descriptor: int, path: Path, kind: int) -> int:
    try:
        _check_private(os.fstat(descriptor), path, kind)
    except Untrusted:
        os.close(descriptor)
        raise
    return descriptor


def _check_private(status: os.stat_result, path: Path, kind: int) -> None:
    if stat.S_IFMT(status.st_mode) != kind:
        raise Untrusted(f"{path} is not a regular file", fix="delete it, or use another folder")
    if status.st_uid not in (os.geteuid(), 0):
        raise Untrusted(
            f"{path} belongs to another user (uid {status.st_uid})",
            fix="use a folder of your own, or take it over with chown",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Untrusted(
            f"{path} can be changed by other users (mode {stat.S_IMODE(status.st_mode):04o})",
            fix=f"chmod go-w {path}",
        )


def _refusal(path: Path, error: OSError) -> StoreError:
    if error.errno in _LINK and path.is_symlink():
        return Untrusted(f"{path} is a symbolic link", fix="name what it points to")
    return StoreError(f"cannot open {path}: {error.strerror}", fix=advice(error))
