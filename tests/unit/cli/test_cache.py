"""`pantile cache`: what users see of the cache."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pantile.cli.main import main
from pantile.store.cache import Entry, ExecutableCache, default_cache

A, B = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "default"))
    monkeypatch.delenv("POPTORCH_CACHE_DIR", raising=False)
    return tmp_path / "default"


def put(cache: ExecutableCache, key: str, name: str, *, days: float = 0.0) -> None:
    """An entry of 3 000 bytes of code that was last used so many days ago."""
    code = memoryview(bytes(3000))
    cache.get_or_build(key, lambda: Entry(key, {"name": name}, {"code": code}))
    then = time.time() - 86400 * days
    os.utime(cache.folder / f"{key}.pantile", (then, then))


def test_list_shows_a_table(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    put(default_cache(), A, "LeNet training", days=3.5)
    put(default_cache(), B, "BERT inference")

    assert main(["cache", "list"]) == 0

    title, newest, oldest, total = capsys.readouterr().out.splitlines()
    assert title.split() == ["key", "what", "size", "age", "last", "used"]
    assert newest.startswith("bbbbbbbbbbbb  BERT inference  ")
    assert oldest.startswith("aaaaaaaaaaaa  LeNet training  ")
    assert oldest.endswith("  3 d")
    assert " KiB " in oldest
    assert total.startswith("2 executables, 6.")
    assert total.endswith(str(folder))


def test_list_of_an_empty_cache_says_so(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["cache", "list"]) == 0

    assert capsys.readouterr().out == f"0 executables, 0 B, in {folder}\n"


def test_list_can_be_read_by_programs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    put(default_cache(), A, "LeNet")

    assert main(["cache", "list", "--json"]) == 0

    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["key"], entry["name"], entry["problem"]) == (A, "LeNet", None)
    assert entry["size"] == (folder / f"{A}.pantile").stat().st_size
    assert entry["used"] == pytest.approx(time.time(), abs=60)
    assert entry["created"] == pytest.approx(time.time(), abs=60)


def test_list_says_what_is_wrong_with_an_entry(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    put(default_cache(), A, "LeNet")
    (folder / f"{A}.pantile").chmod(0o666)

    assert main(["cache", "list"]) == 0

    assert "not usable" in capsys.readouterr().out


def test_a_name_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    put(default_cache(), A, "\x1b[2Jred\nline")

    main(["cache", "list"])

    assert "\N{REPLACEMENT CHARACTER}[2Jred\N{REPLACEMENT CHARACTER}line" in capsys.readouterr().out


def test_clear_removes_everything_and_says_what(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    put(default_cache(), A, "LeNet")
    size = (folder / f"{A}.pantile").stat().st_size / 1024

    assert main(["cache", "clear"]) == 0

    removed, total = capsys.readouterr().out.splitlines()
    assert removed == f"removed aaaaaaaaaaaa  {size:.1f} KiB  LeNet"
    assert total == f"removed 1 executable, {size:.1f} KiB, from {folder}"
    assert default_cache().entries() == []


@pytest.mark.parametrize(
    ("age", "kept"), [("30d", {B}), ("4w", {B}), ("960h", {A, B}), ("1s", {B}), ("41d", {A, B})]
)
def test_clear_can_keep_what_was_used_lately(age: str, kept: set[str]) -> None:
    put(default_cache(), A, "old", days=40 - 0.01)
    put(default_cache(), B, "new", days=-1)

    assert main(["cache", "clear", "--older-than", age]) == 0

    assert {info.key for info in default_cache().entries()} == kept


@pytest.mark.parametrize("age", ["soon", "30", "-3d", "d", "3y"])
def test_an_age_that_cannot_be_read_is_wrong_usage(
    age: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(default_cache(), A, "LeNet")

    with pytest.raises(SystemExit) as ended:
        main(["cache", "clear", f"--older-than={age}"])

    assert ended.value.code == 2
    assert age in capsys.readouterr().err
    assert len(default_cache().entries()) == 1


def test_path_shows_the_folder(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    main(["cache", "path"])

    assert capsys.readouterr().out == f"{folder}\n"


def test_the_folder_of_poptorch_comes_before_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "named"))

    main(["cache", "path"])

    assert capsys.readouterr().out == f"{tmp_path / 'named'}\n"


def test_dir_names_another_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = ExecutableCache(tmp_path / "other", limit_bytes=None)
    put(default_cache(), A, "mine")
    put(other, B, "theirs")

    assert main(["cache", "clear", "--dir", str(other.folder)]) == 0

    assert "theirs" in capsys.readouterr().out
    assert [info.key for info in default_cache().entries()] == [A]


def test_a_folder_that_is_not_there_is_an_error_with_a_fix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["cache", "list", "--dir", str(tmp_path / "missing")]) == 1

    shown = capsys.readouterr().err
    assert "missing is not a folder" in shown
    assert "fix: " in shown
