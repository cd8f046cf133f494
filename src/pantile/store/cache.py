"""The executable cache: one file per compiled program, built once, checked whenever it is read.

    find(key) ── found ─────────────────────────────▶ entry
       │ not there, damaged, or not trusted
       ▼
    lock (one process builds, the others wait) ── find again ── found ──▶ entry
       │
       ▼
    build() ── write ── evict the least recently used ──▶ entry

The folder holds `<key>.pantile` files and nothing else. Locks are in the user's own cache, so that
a folder the user named stays clean. Whatever goes wrong with the files is one message in the log:
the run goes on with what was built.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pantile.errors import DamagedFile, StoreError
from pantile.logging import logger
from pantile.store.atomic_file import advice, sweep
from pantile.store.container import Container, read_header, read_whole, unpack, write_container
from pantile.store.location import default_folder, size_limit
from pantile.store.lock import exclusive, sweep_locks
from pantile.store.trust import check_folder, open_trusted

KIND = "executable"
SUFFIX = ".pantile"
NOTICE_AFTER = 5.0  # seconds of waiting before the log says so

_KEY = re.compile(r"[0-9a-f]{64}")
_said: set[str] = set()


@dataclass(frozen=True)
class Entry:
    """A compiled program: its key (64 hex digits), a JSON header and named bytes."""

    key: str
    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]


@dataclass(frozen=True)
class EntryInfo:
    """What a listing says about an entry. Times are seconds since the epoch."""

    key: str
    name: str
    size: int
    created: float
    used: float
    problem: str | None = None


class ExecutableCache:
    """The entries of one folder.

    `limit_bytes` bounds their total size: when it is passed, the least recently used ones go.
    `wait_seconds` bounds how long to wait for another process that builds the same entry.
    """

    def __init__(
        self, folder: Path, *, limit_bytes: int | None, wait_seconds: float = 600.0
    ) -> None:
        self.folder = Path(folder).absolute()
        self.limit_bytes = limit_bytes
        self.wait_seconds = wait_seconds

    def find(self, key: str) -> Entry | None:
        """The entry, if it is there, trusted and exactly what was written."""
        path = self._path(key)
        try:
            return self._read(path, key)
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            logger.warning("%s. It is not used and will be built again.", error.message)
        except StoreError as error:
            about_the_file = str(path) in error.message
            subject = error.message if about_the_file else str(self.folder)
            _say_once(subject, f"cached executable not used: {error}")
        return None

    def get_or_build(self, key: str, build: Callable[[], Entry]) -> tuple[Entry, bool]:
        """The entry, and whether it was found; if not, it was built and, if possible, stored.

        Of all processes and threads that ask for a key at the same time one builds it. If that one
        dies, fails or does not finish in time, another one builds.
        """
        found = self.find(key)
        if found is not None:
            return found, True
        with self._building(key) as alone:
            found = self.find(key)
            if found is not None:
                return found, True
            if not alone:
                _say_once(
                    key, f"no lock for executable {key[:12]}: another process may build it too"
                )
            entry = build()
            if entry.key != key:
                raise StoreError(
                    f"build returned an entry for key {entry.key!r}, not {key!r}",
                    fix="return an Entry with the key that was asked for",
                )
            self._store(entry)
        return entry, False

    def entries(self) -> list[EntryInfo]:
        """What is there, most recently used first. Only headers are read."""
        infos = [self._info(key, status) for key, status in self._files()]
        return sorted(infos, key=lambda info: info.used, reverse=True)

    def size(self) -> int:
        """The bytes of all entries."""
        return sum(status.st_size for _, status in self._files())

    def remove(self, key: str) -> bool:
        """Delete one entry; returns whether it was there. A program that runs it goes on."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(
                f"cannot delete {self._path(key)}: {error.strerror}",
                fix="change the permissions of the folder",
            ) from error
        return True

    def clear(self) -> int:
        """Delete all entries, and what dead processes left; returns how many entries there were."""
        self.sweep()
        return sum(self.remove(key) for key, _ in self._files())

    def sweep(self) -> None:
        """Delete the temporary files and locks of processes that died."""
        sweep(self.folder)
        sweep_locks(_lock_folder())

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreError(
                f"cache key {key!r} is not 64 lower-case hex digits",
                fix="pass a SHA-256 hex digest",
            )
        return self.folder / f"{key}{SUFFIX}"

    def _read(self, path: Path, key: str) -> Entry:
        descriptor = open_trusted(path)
        try:
            container = unpack(read_whole(descriptor, str(path)), KIND, str(path))
            stored_key, _, header = _cache_header(container.header, path)
            if stored_key != key:
                raise DamagedFile(
                    f"{path} is damaged: it was stored under the key {stored_key!r}",
                    fix="delete it",
                )
            _mark_used(descriptor)
            return Entry(key, header, container.sections)
        except DamagedFile:
            _unlink_if_same(path, descriptor)
            raise
        finally:
            os.close(descriptor)

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """The key and status of each entry file, whatever is in it."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(
                f"cannot list {self.folder}: {error.strerror}", fix="name a folder you may read"
            ) from error
        found = []
        for name in names:
            key = name.removesuffix(SUFFIX)
            if name != key and _KEY.fullmatch(key):
                with suppress(FileNotFoundError):  # another process has just removed it
                    found.append((key, os.stat(self.folder / name, follow_symlinks=False)))
        return found

    def _info(self, key: str, status: os.stat_result) -> EntryInfo:
        path = self._path(key)
        size, used = status.st_size, status.st_mtime
        try:
            descriptor = open_trusted(path)
            try:
                stored = _cache_header(read_header(descriptor, KIND, str(path)), path)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return EntryInfo(key, "", size, used, used, problem="removed meanwhile")
        except StoreError as error:
            return EntryInfo(key, "", size, used, used, problem=error.message)
        _, created, header = stored
        return EntryInfo(key, str(header.get("name", "")), size, created, used)

    def _store(self, entry: Entry) -> None:
        """Write the entry; a cache that cannot be written does not stop the run."""
        size = sum(memoryview(data).nbytes for data in entry.sections.values())
        if self.limit_bytes is not None and size > self.limit_bytes:
            message = (
                f"executable of {size:,} bytes not cached: the limit of {self.folder} is "
                f"{self.limit_bytes:,} bytes (PANTILE_CACHE_LIMIT)"
            )
            _say_once(message, message)
            return
        header = {"key": entry.key, "created": time.time(), "entry": dict(entry.header)}
        try:
            _make_private(self.folder)
            write_container(self._path(entry.key), Container(KIND, header, entry.sections))
            self._evict(keep=entry.key)
        except StoreError as error:
            _say_once(str(self.folder), f"executable not cached: {error}")

    def _evict(self, keep: str) -> None:
        """Remove the least recently used entries until the rest is within the limit."""
        if self.limit_bytes is None:
            return
        files = self._files()
        excess = sum(status.st_size for _, status in files) - self.limit_bytes
        for key, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
            if excess <= 0:
                return
            if key != keep and self.remove(key):
                excess -= status.st_size

    @contextmanager
    def _building(self, key: str) -> Iterator[bool]:
        """Keep other processes from building the same entry at the same time."""
        folder = _lock_folder()
        try:
            _make_private(folder)
        except StoreError as error:
            logger.debug("no lock: %s", error.message)
            yield False
            return
        place = f"{os.path.realpath(self.folder)}\n{key}"
        name = hashlib.sha256(os.fsencode(place)).hexdigest()[:32]
        with exclusive(
            folder / f"{name}.lock",
            wait_seconds=self.wait_seconds,
            notice_after=NOTICE_AFTER,
            notice=lambda owner: logger.warning(
                "%s is compiling the same executable (%s); waiting for it", owner, key[:12]
            ),
        ) as alone:
            yield alone


def default_cache() -> ExecutableCache:
    """The user's own cache; see `location` for the variables that move and bound it."""
    return ExecutableCache(default_folder(), limit_bytes=size_limit())


def _lock_folder() -> Path:
    return default_folder() / "locks"


def _make_private(folder: Path) -> None:
    """Create the folder, for the user only, if it is not there; it must be trusted if it is."""
    try:
        for missing in (folder.parent, folder):
            missing.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder)
    except OSError as error:
        raise StoreError(
            f"cannot create the folder {folder}: {error.strerror}", fix=advice(error)
        ) from error


def _cache_header(header: Mapping[str, Any], path: Path) -> tuple[str, float, Mapping[str, Any]]:
    """The key, the time of creation and the builder's own header."""
    match header:
        case {"key": str(key), "created": float(created), "entry": dict(entry)}:
            return key, created, entry
    raise DamagedFile(f"{path} is damaged: its header has no key", fix="delete it")


def _mark_used(descriptor: int) -> None:
    with suppress(OSError):  # a read-only cache is still a cache
        os.utime(descriptor)


def _unlink_if_same(path: Path, descriptor: int) -> None:
    """Remove the file that was read, not one that another process has put there since."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            path.unlink()


def _say_once(subject: str, message: str) -> None:
    """Log what would otherwise come again with every executable of the folder."""
    if subject not in _said:
        _said.add(subject)
        logger.warning(message)
