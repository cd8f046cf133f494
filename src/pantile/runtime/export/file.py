"""The file of an export: one container that holds data only, and machine code only as bytes.

header              who wrote it (versions, CPU, threads), training or not, with a model or not
document            JSON: the records of `encode`, and where each part of the export begins
tensor:0, 1, …      the memory of weights, optimizer state and other tensors
executable:0, …     entries of the executable cache, each a container of its own
"""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pantile.errors import DamagedFile, StoreError, UnknownFormat
from pantile.logging import logger
from pantile.runtime.export.decode import Reader
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.paths import Paths
from pantile.store.cache import KIND as EXECUTABLE
from pantile.store.cache import Entry
from pantile.store.container import Container, pack, read_container, unpack, write_container
from pantile.store.tensors import pack_tensors, unpack_tensors

KIND = "export"
FORMAT = 1
DEFAULT_NAME = "model.poptorch"
_FIXED = ("pantile", "torch", "machine", "cpu")
"""What machine code can depend on without a trace in its key."""

Parts = Mapping[str, Any]
"""Part of the export -> where it begins among the records."""


def writer_facts() -> dict[str, Any]:
    """What the machine code of this process depends on."""
    from pantile import __version__

    return {
        "pantile": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def write_export(
    path: Path, about: Mapping[str, Any], writer: Writer, parts: Parts, entries: Sequence[Entry]
) -> None:
    """Put an export at `path`, whole or not at all."""
    rows, stored = writer.tensors.finished()
    tensors, sections = pack_tensors(stored)
    document = {"records": writer.records, "parts": parts, "rows": rows, "tensors": tensors}
    sections["document"] = memoryview(json.dumps(document, separators=(",", ":")).encode("ascii"))
    for number, entry in enumerate(entries):
        inner = Container(EXECUTABLE, {"key": entry.key, "header": entry.header}, entry.sections)
        sections[f"executable:{number}"] = memoryview(pack(inner))
    header = {"format": FORMAT, "written_by": writer_facts(), **about}
    write_container(path, Container(KIND, header, sections))


@dataclass(frozen=True)
class ExportFile:
    """An export as it was read: checked, not yet restored."""

    path: Path
    header: Mapping[str, Any]
    document: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    entries: tuple[Entry, ...]

    def restore(self, *names: str, paths: Paths, whole_model: bool = False) -> list[Any]:
        """The values of some parts; None for a part that was not written."""
        with restoring(self.path):
            reader = Reader(self.document["records"], self.document["rows"], self.tensors, paths)
            if whole_model:
                reader.trust_modules()
            return [reader.value(self.document["parts"].get(name)) for name in names]


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is an error about the file."""
    try:
        yield
    except StoreError as error:
        error.message = f"{path}: {error.message}"
        raise
    except Exception as error:
        # The digest was right: either the classes are not those of the exporting program, or the
        # file was made to deceive.
        raise StoreError(
            f"{path} cannot be restored: {type(error).__name__}: {error}",
            fix="load it with the source code that the model had when it was exported",
        ) from error


def read_export(path: Path) -> ExportFile:
    """Read and check the export at `path`; nothing in it is run or imported."""
    container = read_container(path, KIND)
    header = container.header
    if header.get("format") != FORMAT:
        raise UnknownFormat(
            f"{path} is an export of version {header.get('format')!r}; this release reads {FORMAT}",
            fix="export the model again with this release",
        )
    try:
        document = json.loads(bytes(container.sections["document"]))
        tensors = unpack_tensors(document["tensors"], container.sections, source=str(path))
        names = [name for name in container.sections if name.startswith("executable:")]
        entries = [_entry(container.sections[name], f"{path}, {name}") for name in names]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"{path} is not an export: {type(error).__name__}: {error}",
            fix="export the model again",
        ) from error
    return ExportFile(path, header, document, tensors, _usable(path, header, entries))


def _entry(data: memoryview, source: str) -> Entry:
    inner = unpack(data, EXECUTABLE, source)
    return Entry(str(inner.header["key"]), dict(inner.header["header"]), inner.sections)


def _usable(path: Path, header: Mapping[str, Any], entries: list[Entry]) -> tuple[Entry, ...]:
    """The machine code that may be run here; otherwise one message, and it is compiled again."""
    if not entries:
        return ()
    why = _not_private(path)
    if why:
        logger.warning("%s: %s. Its machine code is not used: it is compiled again.", path, why)
        return ()
    there, here = header.get("written_by", {}), writer_facts()
    changed = [f"{k} {there.get(k)} (here {here[k]})" for k in _FIXED if there.get(k) != here[k]]
    if changed:
        logger.warning(
            "%s was exported with %s: the model is compiled again.", path, ", ".join(changed)
        )
        return ()
    return tuple(entries)


def _not_private(path: Path) -> str:
    status = os.stat(path)
    if status.st_uid not in (os.geteuid(), 0):
        return f"the file belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can change the file (chmod go-w {path})"
    return ""


# Names of files


def path_to_write(filename: str | os.PathLike[str]) -> Path:
    """Where to write: folders that are missing are made; a folder gets a file inside."""
    name = _text(filename)
    folder = os.path.dirname(name)
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the folder {folder}: {error.strerror}",
                fix="choose a filename in a folder you can write to",
            ) from error
    if os.path.isdir(name):
        inside = os.path.join(name, DEFAULT_NAME)
        logger.warning("%s is a folder: the model is saved as %s", name, inside)
        return Path(inside)
    return Path(name)


def path_to_read(filename: str | os.PathLike[str]) -> Path:
    """Which file to read: of a folder, the file that saving to it wrote."""
    name = _text(filename)
    return Path(name, DEFAULT_NAME) if os.path.isdir(name) else Path(name)


def _text(filename: object) -> str:
    if not isinstance(filename, str | os.PathLike) or not os.fspath(filename):
        raise StoreError(
            f"filename is {filename!r}, not the name of a file",
            fix='pass a path such as "model.poptorch"',
        )
    return os.fsdecode(filename)
