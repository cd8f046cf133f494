"""Files made to hurt: their digests are right, their numbers are not. An error within a second."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
from pathlib import Path

import pytest

from pantile.errors import DamagedFile, StoreError
from pantile.store.container import read_container, unpack

HUGE = 2**63


def forged(
    manifest: bytes,
    body: bytes = b"",
    *,
    sections: int = 0,
    manifest_length: int | None = None,
    total: int | None = None,
) -> bytes:
    """A file with right digests and any numbers."""
    body = manifest + body
    length = len(manifest) if manifest_length is None else manifest_length
    numbers = struct.pack(
        "<8sIIQQ", b"\x89PANTILE", 1, sections, length, 96 + len(body) if total is None else total
    )
    start = numbers + hashlib.sha256(numbers + manifest).digest()
    return start + hashlib.sha256(start + body).digest() + body


def with_sections(*rows: object, data: bytes = bytes(1000), count: int | None = None) -> bytes:
    manifest = json.dumps({"header": {}, "kind": "example", "sections": rows}).encode()
    padding = bytes(-(96 + len(manifest)) % 64)
    return forged(manifest, padding + data, sections=len(rows) if count is None else count)


def manifest_of(**fields: object) -> bytes:
    return json.dumps({"header": {}, "kind": "example", "sections": []} | fields).encode()


def million_sections() -> bytes:
    rows = ",".join(f'["{n}",0]' for n in range(10**6))
    return f'{{"header":{{}},"kind":"example","sections":[{rows}]}}'.encode()


ATTACKS = {
    "a manifest of 2^63 bytes": forged(manifest_of(), manifest_length=HUGE),
    "a manifest longer than the file": forged(manifest_of(), manifest_length=10**6),
    "a manifest of 2^64 - 1 bytes": forged(manifest_of(), manifest_length=2**64 - 1),
    "a file of 2^63 bytes": forged(manifest_of(), total=HUGE),
    "a file of no bytes": forged(manifest_of(), total=0),
    "2^32 - 1 sections": forged(manifest_of(), sections=2**32 - 1),
    "more sections than rows": with_sections(["a", 1000], count=2),
    "fewer sections than rows": with_sections(["a", 1000], count=0),
    "a section of 2^63 bytes": with_sections(["a", HUGE]),
    "a section of 10^400 bytes": with_sections(["a", 10**400]),
    "a negative section": with_sections(["a", -1]),
    "sections that overlap by a negative length": with_sections(["a", 1000], ["b", -500]),
    "sections that together are too long": with_sections(["a", 600], ["b", 600]),
    "a section of a fraction": with_sections(["a", 1000.0]),
    "a section of true": with_sections(["a", True]),
    "a section with an offset": with_sections(["a", 0, 1000]),
    "a section without a name": with_sections([None, 1000]),
    "a section that is a number": with_sections(7),
    "two sections of one name": with_sections(["a", 0], ["a", 1000]),
    "bytes after the last section": with_sections(["a", 10]),
    "bytes and no section": forged(manifest_of(), bytes(100)),
    "a million sections": forged(million_sections(), sections=10**6),
    "a million sections, said to be one": forged(million_sections(), sections=1),
    "sections that are a string": forged(manifest_of(sections="abc"), sections=3),
    "a header that is a list": forged(manifest_of(header=[])),
    "a header that is null": forged(manifest_of(header=None)),
    "a manifest that is a list": forged(b"[]"),
    "a manifest without a header": forged(b'{"kind":"example","sections":[]}'),
    "a manifest with more fields": forged(manifest_of(code="import os")),
    "an empty manifest": forged(b""),
    "a manifest that is not UTF-8": forged(b'{"header":"\xff"}'),
    "a manifest that is a pickle": forged(b"\x80\x04\x95cos\nsystem\n(S'false'\ntR."),
    "a million levels of lists": forged(b"[" * 10**6 + b"]" * 10**6),
    "a million levels that never close": forged(b"[" * 10**6),
    "a million levels of objects": forged(b'{"a":' * 10**6),
    "levels after a string that never ends": forged(b'"\\"' + b"[" * 5000),
    "millions of empty lists": forged(b"[" + b"[]," * 2_500_000 + b"[]]"),
    "millions of empty strings": forged(b"[" + b'"",' * 2_500_000 + b'""]'),
    "a number of a million digits": forged(b'{"header":' + b"9" * 10**6 + b"}"),
    "another kind": forged(manifest_of(kind="checkpoint")),
    "a kind that is a list": forged(manifest_of(kind=[])),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_it_is_refused_within_a_second(attack: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(attack)
    start = time.process_time()

    with pytest.raises(StoreError) as error:
        read_container(path, "example")

    assert str(path) in error.value.message
    assert time.process_time() - start < 1


def test_deep_json_is_refused_also_with_a_high_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**8)
    try:
        with pytest.raises(DamagedFile, match="deeper"):
            unpack(forged(b"[" * 10**6), "example", "the file")
    finally:
        sys.setrecursionlimit(limit)


def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(StoreError, match="not a file of Pantile"):
        read_container(path, "example")


def test_reading_runs_no_code_and_opens_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    watched = ("exec", "compile", "import", "open", "os.system", "subprocess.Popen", "pickle.find")
    seen: list[tuple[str, object]] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event.startswith(watched):
            seen.append((event, arguments[0]))

    sys.addaudithook(watch)
    try:
        for attack in ATTACKS.values():
            watching = False
            path.write_bytes(attack)
            watching = True
            try:
                read_container(path, "example")
            except StoreError:
                continue
    finally:
        watching = False

    assert {event for event, _ in seen} == {"open"}
    assert {str(name) for _, name in seen} == {str(path)}
