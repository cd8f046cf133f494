"""A write leaves one whole file; what killed writers left is removed by the next one."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from pantile.errors import StoreError
from pantile.store.atomic_file import advice, sweep, write_atomically

ABANDONED = ".file.0123456789abcdef.pantile-tmp"


def test_parts_are_joined(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", [b"ab", bytearray(b"c"), memoryview(b"de")])

    assert (tmp_path / "file").read_bytes() == b"abcde"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", [b"old"])

    def parts():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", parts())

    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_next_write_removes_what_a_dead_writer_left(tmp_path: Path) -> None:
    (tmp_path / ABANDONED).write_bytes(b"half")

    write_atomically(tmp_path / "other", [b"whole"])

    assert os.listdir(tmp_path) == ["other"]


def test_the_file_of_a_living_writer_is_not_swept(tmp_path: Path) -> None:
    with (tmp_path / ABANDONED).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        assert sweep(tmp_path) == 0

    assert sweep(tmp_path) == 1


def test_sweeping_leaves_files_of_others_alone(tmp_path: Path) -> None:
    names = {"file", ".file.tmp", "a.pantile-tmp", ".file.0123.pantile-tmp", "x.pantile"}
    for name in names:
        (tmp_path / name).touch()

    sweep(tmp_path)

    assert set(os.listdir(tmp_path)) == names


def test_sweeping_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / ABANDONED).symlink_to("target")

    sweep(tmp_path)

    assert (tmp_path / "target").read_text() == "precious"


def test_sweeping_a_folder_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "missing") == 0


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "with space", "line\nbreak", "\udcff"])
def test_every_name_the_file_system_takes_can_be_written(name: str, tmp_path: Path) -> None:
    write_atomically(tmp_path / name, [b"data"])

    assert os.listdir(tmp_path) == [name]


def test_an_error_names_its_cause_and_a_fix(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory") as error:
        write_atomically(tmp_path / "missing" / "file", [b"data"])

    assert error.value.fix == "check the path"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EACCES, "permissions"),
        (errno.EROFS, "permissions"),
        (errno.ENOTDIR, "path"),
        (errno.EIO, "disk"),
    ],
)
def test_the_advice_fits_the_cause(number: int, words: str) -> None:
    assert words in advice(OSError(number, os.strerror(number)))
