"""A cache entry that is damaged, exchanged or another user's is never loaded: it is built again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tests.fault.cache_faults import KEY, OTHER_KEY, CountingBuilder, entry

from pantile.store.cache import ExecutableCache

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutableCache:
    """A cache with one good entry."""
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "default"))
    cache = ExecutableCache(tmp_path / "cache", limit_bytes=None)
    cache.get_or_build(KEY, entry)
    return cache


@pytest.fixture
def file(cache: ExecutableCache) -> Path:
    return cache.folder / f"{KEY}.pantile"


@pytest.fixture
def builder(tmp_path: Path) -> CountingBuilder:
    return CountingBuilder(tmp_path / "tally", entry())


def assert_built_again(cache: ExecutableCache, builder: CountingBuilder) -> None:
    before = builder.builds

    assert cache.find(KEY) is None
    assert cache.get_or_build(KEY, builder) == (entry(), False)
    assert builder.builds == before + 1
    assert cache.find(KEY) == entry()


def test_a_thousand_bit_flips(
    cache: ExecutableCache, file: Path, builder: CountingBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    good = file.read_bytes()
    chosen = random.Random(0).sample(range(8 * len(good)), 1000)

    for bit in chosen:
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)

        assert cache.get_or_build(KEY, builder) == (entry(), False), f"bit {bit} was not noticed"

    assert builder.builds == 1000
    assert cache.find(KEY) == entry()
    assert len(caplog.records) >= 900  # flips in the version say the same, and that is said once


def test_two_hundred_truncations(
    cache: ExecutableCache, file: Path, builder: CountingBuilder
) -> None:
    good = file.read_bytes()
    lengths = [0, 1, 95, 96, len(good) - 1, *random.Random(1).sample(range(len(good)), 195)]

    for length in lengths:
        file.write_bytes(good[:length])

        assert cache.get_or_build(KEY, builder) == (entry(), False), f"{length} bytes were loaded"

    assert builder.builds == len(lengths)


@pytest.mark.parametrize("extra", [b"\x00", b"x" * 1000])
def test_bytes_at_the_end(
    cache: ExecutableCache, file: Path, builder: CountingBuilder, extra: bytes
) -> None:
    file.write_bytes(file.read_bytes() + extra)

    assert_built_again(cache, builder)


def test_ranges_of_zeros(cache: ExecutableCache, file: Path, builder: CountingBuilder) -> None:
    good = file.read_bytes()
    sources = random.Random(2)

    for _ in range(100):
        start = sources.randrange(len(good) - 64)
        lost = good[:start] + bytes(64) + good[start + 64 :]
        if lost != good:  # padding is zero already
            file.write_bytes(lost)
            assert cache.get_or_build(KEY, builder) == (entry(), False)


def test_an_entry_renamed_to_another_key(
    cache: ExecutableCache, file: Path, builder: CountingBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    cache.get_or_build(OTHER_KEY, lambda: entry(OTHER_KEY))
    shutil.copyfile(cache.folder / f"{OTHER_KEY}.pantile", file)

    assert_built_again(cache, builder)
    assert OTHER_KEY in caplog.text
    assert cache.find(OTHER_KEY) == entry(OTHER_KEY)


@needs_root
def test_an_entry_of_another_user(
    cache: ExecutableCache, file: Path, builder: CountingBuilder
) -> None:
    os.chown(file, 12345, -1)

    assert_built_again(cache, builder)
    assert file.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_others_can_write(
    cache: ExecutableCache, file: Path, builder: CountingBuilder, mode: int
) -> None:
    file.chmod(mode)

    assert_built_again(cache, builder)


def test_a_symbolic_link_to_a_good_entry(
    cache: ExecutableCache, file: Path, builder: CountingBuilder
) -> None:
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)

    assert_built_again(cache, builder)
    assert not file.is_symlink()
    assert target.exists()


def test_a_folder_in_place_of_an_entry(
    cache: ExecutableCache, file: Path, builder: CountingBuilder
) -> None:
    file.unlink()
    file.mkdir()

    assert cache.get_or_build(KEY, builder) == (entry(), False)
    assert builder.builds == 1


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_others_can_write_is_not_used_and_said_once(
    cache: ExecutableCache, builder: CountingBuilder, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache.folder.chmod(mode)

    for _ in range(3):
        assert cache.get_or_build(KEY, builder) == (entry(), False)

    assert builder.builds == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"chmod go-w {cache.folder}" in message


@needs_root
def test_a_folder_of_another_user_is_not_used(
    cache: ExecutableCache, builder: CountingBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(cache.folder, 12345, -1)

    assert cache.get_or_build(KEY, builder) == (entry(), False)
    assert cache.get_or_build(KEY, builder) == (entry(), False)
    assert "another user" in caplog.text


def test_a_linked_folder_is_not_used(
    cache: ExecutableCache, builder: CountingBuilder, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(cache.folder)
    linked = ExecutableCache(tmp_path / "link", limit_bytes=None)

    assert linked.find(KEY) is None
    assert linked.get_or_build(KEY, builder) == (entry(), False)


def test_a_damaged_entry_is_removed_and_the_message_names_it(
    cache: ExecutableCache, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(file.read_bytes()[:-1])

    assert cache.find(KEY) is None

    assert not file.exists()
    (message,) = [record.getMessage() for record in caplog.records]
    assert str(file) in message
    assert "built again" in message


def test_an_entry_of_a_later_format_is_left_until_it_is_replaced(
    cache: ExecutableCache, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(file.read_bytes())
    data[8] = 99
    file.write_bytes(data)

    assert cache.find(KEY) is None
    assert file.exists()
    assert "format version 99" in caplog.text
    assert cache.get_or_build(KEY, entry)[1] is False
    assert cache.find(KEY) == entry()
