"""Containers come back as they were written, and only if every byte is as it was written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pantile.errors import DamagedFile, StoreError, UnknownFormat
from pantile.store.container import (
    Container,
    pack,
    read_container,
    read_header,
    unpack,
    write_container,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def container(**sections: bytes) -> Container:
    views = {name: memoryview(data) for name, data in sections.items()}
    return Container("example", {"name": "a model", "steps": [1, 2.5, None, True]}, views)


@given(
    kind=st.text(),
    header=st.dictionaries(st.text(), plain, max_size=4),
    sections=st.dictionaries(st.text(), st.binary(max_size=200), max_size=5),
)
def test_unpacking_gives_back_what_was_packed(kind, header, sections) -> None:
    written = Container(kind, header, {name: memoryview(data) for name, data in sections.items()})

    read = unpack(pack(written), kind, "memory")

    assert read == written
    assert list(read.sections) == list(sections)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_store_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="the file"):
        unpack(data, "example", "the file")


@given(data=st.binary(max_size=300))
def test_any_bytes_after_a_right_start_are_a_store_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="the file"):
        unpack(pack(container(a=b"123"))[:16] + data, "example", "the file")


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"

    write_container(path, container(code=b"\x00\xff" * 1000, empty=b""))

    assert read_container(path, "example") == container(code=b"\x00\xff" * 1000, empty=b"")
    assert os.listdir(tmp_path) == ["file"]


def test_the_format_is_the_documented_one() -> None:
    manifest = json.dumps(
        {"header": {"a": 1}, "kind": "example", "sections": [["x", 3], ["y", 2]]}
    ).encode()
    body = manifest + bytes(-(96 + len(manifest)) % 64) + b"abc" + bytes(61) + b"de"
    numbers = struct.pack("<8sIIQQ", b"\x89PANTILE", 1, 2, len(manifest), 96 + len(body))
    start = numbers + hashlib.sha256(numbers + manifest).digest()
    file = start + hashlib.sha256(start + body).digest() + body

    read = unpack(file, "example", "by hand")

    assert read.header == {"a": 1}
    assert {name: bytes(data) for name, data in read.sections.items()} == {"x": b"abc", "y": b"de"}


def test_containers_nest() -> None:
    inner = container(data=b"inside")
    outer = Container("outer", {}, {"inner": memoryview(pack(inner))})

    read = unpack(unpack(pack(outer), "outer", "o").sections["inner"], "example", "o/inner")

    assert read == inner


def test_sections_cannot_be_written_to() -> None:
    read = unpack(bytearray(pack(container(a=b"123"))), "example", "memory")

    with pytest.raises(TypeError):
        read.sections["a"][0] = 0


def test_tuples_come_back_as_lists() -> None:
    written = Container("example", {"shape": (1, (2, 3))}, {})

    assert unpack(pack(written), "example", "memory").header == {"shape": [1, [2, 3]]}


@pytest.mark.parametrize("value", [{1: "a"}, {"s": {1, 2}}, [b"bytes"], {"deep": object()}])
def test_a_header_json_would_change_is_refused_by_name(value) -> None:
    with pytest.raises(StoreError, match=r"header\['field'\]"):
        pack(Container("example", {"field": value}, {}))


def test_a_header_nested_too_deep_is_refused_when_written() -> None:
    nested: list[object] = []
    for _ in range(100):
        nested = [nested]

    with pytest.raises(StoreError, match="header"):
        pack(Container("example", {"field": nested}, {}))


def test_brackets_inside_strings_are_not_nesting() -> None:
    header = {"text": "[" * 1000 + '"' + "\\" + "{" * 1000}

    assert unpack(pack(Container("example", header, {})), "example", "memory").header == header


def test_a_header_too_large_is_refused_when_written() -> None:
    with pytest.raises(StoreError, match="section"):
        pack(Container("example", {"text": "x" * (9 << 20)}, {}))


def test_too_many_sections_are_refused_when_written() -> None:
    empty = memoryview(b"")

    with pytest.raises(StoreError, match="70000 sections"):
        pack(Container("example", {}, {str(n): empty for n in range(70000)}))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_container(tmp_path / "file", container())

    with pytest.raises(UnknownFormat, match="'example', not 'checkpoint'"):
        read_container(tmp_path / "file", "checkpoint")


def test_a_file_of_another_format_version_is_refused_as_such() -> None:
    data = bytearray(pack(container()))
    data[8] = 2

    with pytest.raises(UnknownFormat, match="format version 2"):
        unpack(data, "example", "the file")


def test_a_file_of_another_program_is_refused() -> None:
    with pytest.raises(UnknownFormat, match="not a file of Pantile"):
        unpack(b"PK\x03\x04" + bytes(200), "example", "the file")


def test_an_error_names_the_file_and_the_cause(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as missing:
        read_container(tmp_path / "file", "example")
    with pytest.raises(StoreError) as no_folder:
        write_container(tmp_path / "folder" / "file", container())

    assert str(tmp_path / "file") in missing.value.message
    assert "No such file" in missing.value.message
    assert str(tmp_path / "folder" / "file") in no_folder.value.message


@pytest.mark.timeout(10)
def test_a_named_pipe_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(StoreError, match="not a regular file"):
        read_container(tmp_path / "pipe", "example")


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=str(tmp_path)):
        read_container(tmp_path, "example")
    with pytest.raises(StoreError, match=str(tmp_path)):
        write_container(tmp_path, container())


def test_a_listing_reads_the_header_but_not_the_sections(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_container(path, container(data=b"1" * 1000))
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"2")

    with path.open("rb") as file:
        header = read_header(file.fileno(), "example", str(path))

    assert header == container().header
    with pytest.raises(DamagedFile):
        read_container(path, "example")


def test_every_flip_in_the_header_is_seen_by_a_listing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    good = pack(container())
    for position in range(len(good)):
        if 64 <= position < 96:
            continue  # the digest of the whole file, which a listing does not compute
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])

        with path.open("rb") as file, pytest.raises(StoreError):
            read_header(file.fileno(), "example", str(path))


def test_a_written_file_is_for_its_owner_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        write_container(tmp_path / "file", container())
    finally:
        os.umask(previous)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_writing_replaces_a_symbolic_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to("target")

    write_container(tmp_path / "file", container())

    assert (tmp_path / "target").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()


def test_readers_see_whole_files_while_writers_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    versions = [container(data=bytes([n]) * 50_000) for n in range(3)]
    write_container(path, versions[0])

    def write_all() -> None:
        for _ in range(10):
            for version in versions:
                write_container(path, version)

    writers = [threading.Thread(target=write_all) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert read_container(path, "example") in versions
    for writer in writers:
        writer.join()

    assert os.listdir(tmp_path) == ["file"]
