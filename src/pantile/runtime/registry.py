"""The executors that run now, for `pantile monitor`: small files that live as long as they do.

    <runtime dir>/<pid>-<n>.json    who: command, kind, the IPUs it has; written once
    <runtime dir>/<pid>-<n>.pulse   calls so far, a 64-bit number in shared memory

A call adds one to the pulse and nothing else. Files of dead processes are removed by whoever looks.
The folder is $PANTILE_RUNTIME_DIR, else below $XDG_RUNTIME_DIR, else below the folder for temporary
files; it is for this user only.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import mmap
import os
import sys
import tempfile
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pantile.logging import logger
from pantile.store.lock import exclusive

if TYPE_CHECKING:
    from pantile.runtime.compiled import Compiled
    from pantile.runtime.executor import PoplarExecutor

_numbers = itertools.count()
_PULSE_BYTES = 8


@dataclass(frozen=True)
class Entry:
    """One running executor."""

    pid: int
    started: str
    since: float
    user: str
    command: str
    name: str
    kind: str
    ipus_per_replica: int
    replicas: int
    samples_per_call: int
    ipus: tuple[int, ...]


@dataclass(frozen=True)
class Running:
    """An entry with its calls so far and the memory of its process."""

    entry: Entry
    calls: int
    resident_bytes: int


def runtime_folder() -> Path:
    """Where the files are."""
    chosen = os.environ.get("PANTILE_RUNTIME_DIR")
    if chosen:
        return Path(chosen)
    session = os.environ.get("XDG_RUNTIME_DIR")
    return Path(session) / "pantile" if session else _private_folder()


def _private_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"pantile-{os.getuid()}"


def own_folder() -> Path:
    """The same, made if it is missing; PermissionError if it is not this user's."""
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def register(executor: PoplarExecutor, program: Compiled) -> None:
    """Make an executor visible; its first program decides what is shown."""
    if executor._times.pulse is not None:
        return
    try:
        _register(executor, program)
    except OSError as error:
        logger.debug("pantile monitor will not see this executor: %s", error)


def _register(executor: PoplarExecutor, program: Compiled) -> None:
    folder = own_folder()
    # Two processes that start at once must not take the same IPUs.
    with exclusive(folder / "ipus.lock", wait_seconds=2, notice_after=2, notice=logger.debug):
        entry = _entry(executor, program)
        stem = folder / f"{entry.pid}-{next(_numbers)}"
        pulse = stem.with_suffix(".pulse")
        with open(pulse, "xb+") as file:
            file.write(bytes(_PULSE_BYTES))
            file.flush()
            shared = mmap.mmap(file.fileno(), _PULSE_BYTES)
        stem.with_suffix(".json").write_text(json.dumps(asdict(entry)), encoding="utf-8")
    executor._times.pulse = memoryview(shared).cast("Q")
    weakref.finalize(executor, _remove, stem, os.getpid())


def _entry(executor: PoplarExecutor, program: Compiled) -> Entry:
    options = executor._options
    wanted = program.placement.ipus_per_replica * options.replication_factor
    return Entry(
        os.getpid(),
        _start_of(os.getpid()),
        time.time(),
        getpass.getuser(),
        " ".join([Path(sys.executable).name, *sys.argv])[:200],
        options.model_name if options.exists("model_name") else type(executor._user_model).__name__,
        "training" if executor._training else "inference",
        program.placement.ipus_per_replica,
        options.replication_factor,
        _rows(executor, program),
        _free_ipus(wanted, options.ipu_id if options.exists("ipu_id") else None),
    )


def _free_ipus(count: int, chosen: int | None) -> tuple[int, ...]:
    """The lowest numbers that no running executor has, or those from the one a script chose."""
    if chosen is not None:
        return tuple(range(chosen, chosen + count))
    taken = {ipu for item in running() for ipu in item.entry.ipus}
    free = (ipu for ipu in itertools.count() if ipu not in taken)
    return tuple(itertools.islice(free, count))


def _rows(executor: PoplarExecutor, program: Compiled) -> int:
    """Samples of one call."""
    return program.micro_batch * executor._batching.micro_batches


def _remove(stem: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked child does not own its parent's files
        return
    for suffix in (".json", ".pulse"):
        with contextlib.suppress(OSError):
            stem.with_suffix(suffix).unlink()


def running() -> list[Running]:
    """The executors of live processes; what dead ones left is removed."""
    folder = runtime_folder()
    found = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            entry = Entry(**{**read, "ipus": tuple(read["ipus"])})
            calls = int.from_bytes(file.with_suffix(".pulse").read_bytes(), sys.byteorder)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # being written or removed just now
        if _start_of(entry.pid) != entry.started:
            _remove(file.with_suffix(""), os.getpid())
            continue
        found.append(Running(entry, calls, _resident(entry.pid)))
    return found


def _start_of(pid: int) -> str:
    """When a process started, in the system's own ticks; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
