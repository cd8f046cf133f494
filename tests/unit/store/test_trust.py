"""Only files that nobody else could have made or changed are trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pantile.errors import StoreError, Untrusted
from pantile.store.trust import check_folder, check_trusted, open_trusted

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    path = folder / "file"
    path.write_bytes(b"data")
    path.chmod(0o600)
    return path


def test_a_private_file_in_a_private_folder_is_trusted(file: Path) -> None:
    check_trusted(file)
    check_folder(file.parent)


def test_what_others_can_only_read_is_trusted(file: Path) -> None:
    file.parent.chmod(0o755)
    file.chmod(0o644)

    check_trusted(file)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_others_can_write_is_not(file: Path, mode: int) -> None:
    file.chmod(mode)

    with pytest.raises(Untrusted, match=f"{mode:04o}") as error:
        check_trusted(file)
    assert error.value.fix == f"chmod go-w {file}"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_file_in_a_folder_others_can_write_is_not(file: Path, mode: int) -> None:
    file.parent.chmod(mode)

    with pytest.raises(Untrusted, match="folder can be changed"):
        check_trusted(file)


@needs_root
def test_a_file_of_another_user_is_not(file: Path) -> None:
    os.chown(file, 12345, -1)

    with pytest.raises(Untrusted, match="uid 12345"):
        check_trusted(file)


@needs_root
def test_a_file_in_a_folder_of_another_user_is_not(file: Path) -> None:
    os.chown(file.parent, 12345, -1)

    with pytest.raises(Untrusted, match="folder belongs to another user"):
        check_trusted(file)


def test_a_symbolic_link_is_not(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file.name)

    with pytest.raises(Untrusted, match="symbolic link"):
        check_trusted(link)


def test_a_file_behind_a_linked_folder_is_not(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file.parent)

    with pytest.raises(Untrusted, match="symbolic link"):
        check_trusted(tmp_path / "link" / file.name)


@pytest.mark.timeout(10)
def test_a_named_pipe_is_not(file: Path) -> None:
    pipe = file.with_name("pipe")
    os.mkfifo(pipe, 0o600)

    with pytest.raises(Untrusted, match="regular"):
        check_trusted(pipe)


def test_a_folder_in_place_of_a_file_is_not(file: Path) -> None:
    with pytest.raises(Untrusted, match="regular"):
        check_trusted(file.parent)


def test_a_missing_file_is_an_error_that_names_it(file: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        check_trusted(file.with_name("missing"))


def test_what_was_checked_is_what_is_read(file: Path) -> None:
    descriptor = open_trusted(file)
    file.unlink()
    file.write_bytes(b"exchanged")

    with os.fdopen(descriptor, "rb") as opened:
        assert opened.read() == b"data"


def test_a_refused_file_leaves_no_descriptor_open(file: Path) -> None:
    file.chmod(0o666)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(10):
        with pytest.raises(Untrusted):
            open_trusted(file)

    assert len(os.listdir("/proc/self/fd")) == before
