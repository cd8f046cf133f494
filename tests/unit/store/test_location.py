"""The environment says where the cache is and how large it may become."""

from __future__ import annotations

from pathlib import Path

import pytest

from pantile.errors import OptionError
from pantile.store.cache import default_cache
from pantile.store.location import default_folder, size_limit


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for name in ("PANTILE_CACHE_DIR", "PANTILE_CACHE_LIMIT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_cache_is_in_the_users_home() -> None:
    assert default_folder() == Path("/home/somebody/.cache/pantile")


def test_or_in_the_cache_folder_of_the_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")

    assert default_folder() == Path("/caches/pantile")


def test_a_relative_cache_folder_of_the_desktop_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")

    assert default_folder() == Path("/home/somebody/.cache/pantile")


def test_or_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("PANTILE_CACHE_DIR", "~/mine")

    assert default_folder() == Path("/home/somebody/mine")
    assert default_cache().folder == Path("/home/somebody/mine")


def test_the_limit_is_two_gibibytes() -> None:
    assert default_cache().limit_bytes == 2 * 1024**3


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0", 0),
        ("123", 123),
        ("500M", 500 * 1024**2),
        ("1.5g", 3 * 1024**3 // 2),
        ("64 KiB", 64 * 1024),
        ("2TB", 2 * 1024**4),
        ("", 2 * 1024**3),
        ("none", None),
    ],
)
def test_the_limit_can_be_written_with_units(
    written: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_CACHE_LIMIT", written)

    assert size_limit() == size


@pytest.mark.parametrize("written", ["much", "-1", "1e9", "5X", "M", "1..5G"])
def test_a_limit_that_cannot_be_read_is_an_error_naming_the_variable(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_CACHE_LIMIT", written)

    with pytest.raises(OptionError, match="PANTILE_CACHE_LIMIT"):
        size_limit()
