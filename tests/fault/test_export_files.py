"""Damaged, foreign and old export files: an error that names the file, never a wrong model."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from pantile.errors import StoreError
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.file import FORMAT, KIND, read_export, write_export, writer_facts
from pantile.store.cache import Entry
from pantile.store.container import Container, read_container, write_container

GOLDEN = Path(__file__).parent / "golden"
FLIPS = 400
CUTS = 100


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good export."""
    path = tmp_path_factory.mktemp("export") / "model.poptorch"
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    poptorch.inferenceModel(model).compileAndExport(path, torch.randn(2, 3))
    return path.read_bytes()


def refused(path: Path) -> bool:
    """Is the file refused by `load`, with an error that names it?"""
    try:
        poptorch.load(path)
    except StoreError as error:
        return str(path) in error.message and bool(error.fix)
    return False


def test_any_flipped_bit_is_found(saved: bytes, tmp_path: Path) -> None:
    path, chance = tmp_path / "file", random.Random(0)

    for _ in range(FLIPS):
        place = chance.randrange(len(saved))
        damaged = bytearray(saved)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        assert refused(path), f"byte {place}"


def test_any_cut_is_found(saved: bytes, tmp_path: Path) -> None:
    path, chance = tmp_path / "file", random.Random(1)

    for length in [0, 1, 95, 96, len(saved) - 1, *chance.sample(range(len(saved)), CUTS)]:
        path.write_bytes(saved[:length])
        assert refused(path), f"{length} bytes"


def test_bytes_behind_the_end_are_found(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(saved + b"\0")

    assert refused(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", os.urandom(5000)])
def test_file_of_another_program_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)

    with pytest.raises(AssertionError, match="Invalid file"):
        poptorch.load(tmp_path / "file")


def changed(saved: bytes, path: Path, **header: object) -> None:
    """Write the export with another header, as another release would have."""
    path.write_bytes(saved)
    container = read_container(path, KIND)
    new = Container(KIND, {**container.header, **header}, dict(container.sections))
    write_container(path, new)


def test_unknown_version_of_the_format_is_an_error(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    changed(saved, path, format=FORMAT + 1)

    with pytest.raises(AssertionError, match="Invalid file"):
        poptorch.load(path)
    executor = poptorch.inferenceModel(nn.Linear(3, 2))
    with pytest.raises(poptorch.Error, match="version"):
        executor.loadExecutable(path)


def test_unknown_version_of_the_container_is_an_error(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(saved[:8] + struct.pack("<I", 99) + saved[12:])

    with pytest.raises(AssertionError, match=r"Invalid file.*version 99"):
        poptorch.load(path)


def test_file_of_another_release_loads(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    changed(saved, path, written_by={**writer_facts(), "pantile": "0.0.1", "torch": "2.12.0"})

    assert poptorch.load(path).isCompiled()


def test_document_that_is_valid_json_but_no_export_is_an_error(
    saved: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    for document in ([], {}, None, {"records": [], "parts": {}, "rows": [], "tensors": {}}):
        path.write_bytes(saved)
        container = read_container(path, KIND)
        data = memoryview(json.dumps(document).encode())
        sections = {**container.sections, "document": data}
        write_container(path, Container(KIND, container.header, sections))

        assert refused(path), document


def test_first_format_is_still_read() -> None:
    """The file was written by release 0.1.0; every format that was ever released stays readable."""
    loaded = poptorch.load(GOLDEN / "export_format_1.poptorch")

    result = loaded(torch.tensor([[1.0, 1, 1], [-1, -1, -1], [0, 0, 1], [1, 0, 0]]))

    assert result.tolist() == [[6.5, 0], [0, 16], [3.5, 0], [1.5, 0]]
    assert loaded.options.device_iterations == 2
    assert loaded.rng_state == [7, 0]


# Machine code


ENTRY = Entry("ab" * 32, {"name": "toy"}, {"code": memoryview(b"\x7fELF")})


def with_code(path: Path) -> None:
    writer = Writer()
    parts = {"model": writer.value(None, "model")}
    write_export(path, {"training": False, "has_model": True}, writer, parts, [ENTRY])


def test_machine_code_comes_back(tmp_path: Path) -> None:
    with_code(tmp_path / "file")

    (entry,) = read_export(tmp_path / "file").entries

    assert (entry.key, entry.header) == (ENTRY.key, ENTRY.header)
    assert bytes(entry.sections["code"]) == b"\x7fELF"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_machine_code_that_others_could_have_changed_is_not_used(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_code(tmp_path / "file")
    (tmp_path / "file").chmod(mode)

    assert read_export(tmp_path / "file").entries == ()
    assert "other users can change the file" in caplog.text
    assert "compiled again" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_machine_code_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_code(tmp_path / "file")
    os.chown(tmp_path / "file", 12345, 12345)

    assert read_export(tmp_path / "file").entries == ()
    assert "belongs to another user (uid 12345)" in caplog.text


@pytest.mark.parametrize("fact", ["pantile", "torch", "machine", "cpu"])
def test_machine_code_of_another_release_or_cpu_is_not_used(
    fact: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    with_code(path)
    changed(path.read_bytes(), path, written_by={**writer_facts(), fact: "another"})

    assert read_export(path).entries == ()
    messages = [r.message for r in caplog.records if "compiled again" in r.message]
    assert len(messages) == 1
    assert f"{fact} another" in messages[0]


def test_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(nn.Linear(3, 2))
    executor.compile(torch.randn(2, 3))

    with pytest.raises(StoreError, match="/proc"):
        executor.save("/proc/pantile.poptorch")
