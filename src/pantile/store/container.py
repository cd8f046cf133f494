"""One file format for everything kept on disk: named bytes, a JSON header and digests, no pickle.

    offset  size
         0     8   magic  b"\\x89PANTILE"
         8     4   format version (1), little-endian like every number here
        12     4   number of sections
        16     8   length of the manifest
        24     8   length of the whole file
        32    32   SHA-256 of bytes 0 to 31 and the manifest
        64    32   SHA-256 of bytes 0 to 63 and of everything from byte 96 on
        96     …   manifest: JSON {"header": …, "kind": …, "sections": [[name, length], …]}
         …     …   the sections in that order, each on a multiple of 64 bytes, zeros between

Sections have lengths but no offsets, so they cannot overlap or point outside the file. Lengths
are checked against the file before anything is allocated, and the digests before anything is
parsed. The first digest lets a listing read headers without reading the sections.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pantile.errors import DamagedFile, StoreError, UnknownFormat
from pantile.store.atomic_file import advice, write_atomically

MAGIC = b"\x89PANTILE"
FORMAT_VERSION = 1
ALIGNMENT = 64
MAX_MANIFEST = 8 << 20
MAX_SECTIONS = 1 << 16
MAX_DEPTH = 64
MAX_LISTS = 1 << 19

_NUMBERS = struct.Struct("<8sIIQQ")
_DIGEST = 32
PREFIX = _NUMBERS.size + 2 * _DIGEST

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Container:
    """What a file holds.

    The header is JSON: its keys are strings and keep their order, its tuples come back as lists.
    """

    kind: str
    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]


def write_container(path: Path, container: Container) -> None:
    """Put the container at `path`, whole or not at all, readable by its owner only."""
    write_atomically(path, _parts(container, str(path)))


def read_container(path: Path, kind: str) -> Container:
    """The container at `path`, which must be of that kind and exactly what was written.

    The user named the path: a symbolic link is followed. `trust` is for files found otherwise.
    """
    descriptor = _open(path)
    try:
        return unpack(read_whole(descriptor, str(path)), kind, str(path))
    finally:
        os.close(descriptor)


def pack(container: Container) -> bytes:
    """The container as bytes, to be kept in a section of another one."""
    return b"".join(_parts(container, f"{container.kind} container"))


def unpack(data: Bytes, kind: str, source: str) -> Container:
    """The container in `data`; `source` is what errors call it. Sections are views, not copies."""
    view = memoryview(data).cast("B").toreadonly()
    prefix = _prefix(view[:PREFIX], len(view), source)
    if prefix.digest != _sha256(view[: PREFIX - _DIGEST], view[PREFIX:]):
        raise _damaged(source, "its digest does not match its bytes")
    manifest = _manifest(view, prefix, kind, source)
    return Container(kind, manifest["header"], _sections(view, prefix, manifest, source))


def read_header(descriptor: int, kind: str, source: str) -> Mapping[str, Any]:
    """The header of an open file, checked by its own digest; the sections are not read."""
    size = _regular_size(descriptor, source)
    start = _read(descriptor, PREFIX, source)
    prefix = _prefix(memoryview(start), size, source)
    view = memoryview(start + _read(descriptor, prefix.manifest_length, source))
    header: Mapping[str, Any] = _manifest(view, prefix, kind, source)["header"]
    return header


def read_whole(descriptor: int, source: str) -> memoryview:
    """All bytes of an open container file; its lengths are checked before memory is taken."""
    size = _regular_size(descriptor, source)
    start = _read(descriptor, PREFIX, source)
    _prefix(memoryview(start), size, source)
    try:
        data = memoryview(bytearray(size))
    except MemoryError as error:
        raise StoreError(
            f"{source} holds {size:,} bytes, more than the memory there is",
            fix="read it on a machine with more memory",
        ) from error
    data[:PREFIX] = start
    filled = PREFIX + _read_into(descriptor, data[PREFIX:], source)
    return data[:filled].toreadonly()


# --- writing


def _parts(container: Container, target: str) -> list[Bytes]:
    """The file in pieces, in order; the sections are not copied."""
    sections = {name: memoryview(data).cast("B") for name, data in container.sections.items()}
    manifest = _manifest_bytes(container, sections, target)
    body = list(_body(manifest, sections))
    total = PREFIX + sum(len(part) for part in body)
    numbers = _NUMBERS.pack(MAGIC, FORMAT_VERSION, len(sections), len(manifest), total)
    start = numbers + _sha256(numbers, manifest)
    return [start + _sha256(start, *body), *body]


def _manifest_bytes(container: Container, sections: Mapping[str, memoryview], target: str) -> bytes:
    header = _plain(dict(container.header), "header", target)
    lengths = [[name, len(data)] for name, data in sections.items()]
    if len(lengths) > MAX_SECTIONS or not all(isinstance(name, str) for name in sections):
        raise StoreError(
            f"{target}: {len(lengths)} sections; a file holds {MAX_SECTIONS}, named by strings",
            fix="put several of them into one section",
        )
    table = {"header": header, "kind": container.kind, "sections": lengths}
    manifest = json.dumps(table, separators=(",", ":")).encode("ascii")
    if len(manifest) > MAX_MANIFEST or not _shallow(manifest):
        raise StoreError(
            f"{target}: the header has {len(manifest):,} bytes or is nested too deep; a file takes "
            f"{MAX_MANIFEST:,} bytes and {MAX_DEPTH} levels",
            fix="put large values into a section",
        )
    return manifest


def _plain(value: Any, place: str, target: str, depth: int = 0) -> Any:
    """The value, if JSON gives it back as it is: JSON would turn the key 1 into "1", silently."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [_plain(v, f"{place}[{i}]", target, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, Mapping) and depth < MAX_DEPTH and all(isinstance(k, str) for k in value):
        return {k: _plain(v, f"{place}[{k!r}]", target, depth + 1) for k, v in value.items()}
    raise StoreError(
        f"{target}: {place} is a {type(value).__name__} that JSON cannot give back",
        fix="use None, bool, int, float, str, lists and dicts with string keys, "
        f"at most {MAX_DEPTH} levels deep",
    )


def _body(manifest: bytes, sections: Mapping[str, memoryview]) -> Iterator[Bytes]:
    yield manifest
    position = PREFIX + len(manifest)
    for data in sections.values():
        padding = -position % ALIGNMENT
        yield bytes(padding)
        yield data
        position += padding + len(data)


# --- reading


@dataclass(frozen=True)
class _Prefix:
    section_count: int
    manifest_length: int
    manifest_digest: bytes
    digest: bytes


def _prefix(start: memoryview, size: int, source: str) -> _Prefix:
    """The fixed part, its numbers checked against each other and the size of the file."""
    if len(start) < PREFIX:
        raise _damaged(source, f"it ends after {len(start)} bytes")
    magic, version, sections, manifest, total = _NUMBERS.unpack_from(start)
    if magic != MAGIC:
        raise UnknownFormat(
            f"{source} is not a file of Pantile", fix="name a file that Pantile wrote"
        )
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"{source} has format version {version}; this release reads {FORMAT_VERSION}",
            fix="write it again with this release, or read it with the release that wrote it",
        )
    if total != size:
        raise _damaged(source, f"it has {size:,} bytes and should have {total:,}")
    if manifest > min(MAX_MANIFEST, size - PREFIX) or sections > MAX_SECTIONS:
        raise _damaged(source, f"a manifest of {manifest:,} bytes for {sections:,} sections")
    middle = _NUMBERS.size + _DIGEST
    return _Prefix(
        sections, manifest, bytes(start[_NUMBERS.size : middle]), bytes(start[middle:PREFIX])
    )


def _manifest(view: memoryview, prefix: _Prefix, kind: str, source: str) -> dict[str, Any]:
    """The manifest, parsed only after its digest was found right."""
    raw = view[PREFIX : PREFIX + prefix.manifest_length]
    if prefix.manifest_digest != _sha256(view[: _NUMBERS.size], raw):
        raise _damaged(source, "the digest of its header does not match")
    text = bytes(raw)
    if not _shallow(text):
        raise _damaged(source, f"its header is nested deeper than {MAX_DEPTH} levels")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(source, f"its header is not JSON ({error})") from error
    if not isinstance(manifest, dict) or set(manifest) != {"header", "kind", "sections"}:
        raise _damaged(source, "its manifest has other fields than header, kind and sections")
    if not isinstance(manifest["header"], dict):
        raise _damaged(source, "its header is not a JSON object")
    if manifest["kind"] != kind:
        raise UnknownFormat(
            f"{source} holds a container of kind {manifest['kind']!r}, not {kind!r}",
            fix=f"name a file of kind {kind!r}",
        )
    return manifest


def _sections(
    view: memoryview, prefix: _Prefix, manifest: Mapping[str, Any], source: str
) -> dict[str, memoryview]:
    """The sections, where their lengths put them; they must fill the file exactly."""
    table = manifest["sections"]
    if not isinstance(table, list) or len(table) != prefix.section_count:
        raise _damaged(source, "its table of sections does not match their number")
    found: dict[str, memoryview] = {}
    position = PREFIX + prefix.manifest_length
    for row in table:
        name, length = _section_row(row, source)
        position += -position % ALIGNMENT
        if name in found or length > len(view) - position:
            raise _damaged(source, f"section {name!r} is there twice, or longer than the file")
        found[name] = view[position : position + length]
        position += length
    if position != len(view):
        raise _damaged(source, "its sections do not fill it")
    return found


def _section_row(row: object, source: str) -> tuple[str, int]:
    match row:
        case [str(name), int(length)] if length >= 0 and not isinstance(length, bool):
            return name, length
    raise _damaged(source, "its table of sections holds something else than names and lengths")


_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def _shallow(text: bytes) -> bool:
    """Whether JSON text stays within MAX_DEPTH levels and MAX_LISTS lists and objects.

    Not left to the parser's RecursionError: a script that raised Python's recursion limit would
    run out of C stack first.
    """
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    brackets = outside_strings.translate(None, _NOT_A_BRACKET)
    depth = 0
    for bracket in brackets[: 2 * MAX_LISTS + 1]:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return False
    return len(brackets) <= 2 * MAX_LISTS


# --- bytes


def _open(path: Path) -> int:
    # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _regular_size(descriptor: int, source: str) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{source} is not a regular file", fix="name a file that Pantile wrote")
    return status.st_size


def _read(descriptor: int, length: int, source: str) -> bytes:
    """The next `length` bytes, or fewer if the file ends before."""
    data = bytearray(length)
    return bytes(data[: _read_into(descriptor, memoryview(data), source)])


def _read_into(descriptor: int, data: memoryview, source: str) -> int:
    """Fill `data` from the file; returns how many bytes there were."""
    filled = 0
    try:
        while filled < len(data) and (count := os.readv(descriptor, [data[filled:]])):
            filled += count
    except OSError as error:
        raise _unreadable(source, error) from error
    return filled


def _sha256(*parts: Bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _damaged(source: str, why: str) -> DamagedFile:
    return DamagedFile(
        f"{source} is damaged: {why}", fix="delete it and let it be written again, or use a copy"
    )


def _unreadable(source: str, error: OSError) -> StoreError:
    return StoreError(f"cannot read {source}: {error.strerror}", fix=advice(error))
