"""The cache: built once, found afterwards, bounded in size, and never in the way of a run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from pantile.errors import StoreError
from pantile.store.cache import Entry, ExecutableCache, default_cache

A, B, C = "a" * 64, "b" * 64, "c" * 64


class Builder:
    """Builds entries and counts how often."""

    def __init__(self, key: str = A, size: int = 100) -> None:
        self.entry = Entry(key, {"name": f"model {key[0]}"}, {"code": memoryview(bytes(size))})
        self.builds = 0

    def __call__(self) -> Entry:
        self.builds += 1
        return self.entry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder; the locks are elsewhere."""
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "default"))
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> ExecutableCache:
    return ExecutableCache(folder, limit_bytes=None)


def used_long_ago(cache: ExecutableCache, key: str, days: int) -> None:
    then = time.time() - 86400 * days
    os.utime(cache.folder / f"{key}.pantile", (then, then))


def test_an_entry_is_built_once_and_found_afterwards(cache: ExecutableCache) -> None:
    builder = Builder()

    assert cache.get_or_build(A, builder) == (builder.entry, False)
    assert cache.get_or_build(A, builder) == (builder.entry, True)
    assert cache.find(A) == builder.entry
    assert builder.builds == 1


def test_another_cache_of_the_folder_finds_it(cache: ExecutableCache, folder: Path) -> None:
    builder = Builder()
    cache.get_or_build(A, builder)

    assert ExecutableCache(folder, limit_bytes=None).find(A) == builder.entry


def test_the_folder_holds_one_file_per_entry_and_nothing_else(
    cache: ExecutableCache, folder: Path
) -> None:
    for key in (A, B, A):
        cache.get_or_build(key, Builder(key))

    assert sorted(os.listdir(folder)) == [f"{A}.pantile", f"{B}.pantile"]


def test_the_folder_is_made_for_its_owner_only(cache: ExecutableCache, folder: Path) -> None:
    cache.get_or_build(A, Builder())

    assert folder.stat().st_mode & 0o777 == 0o700


def test_looking_makes_no_folder(cache: ExecutableCache, folder: Path) -> None:
    assert cache.find(A) is None
    assert cache.entries() == []
    assert cache.size() == 0
    assert cache.clear() == 0
    assert not folder.exists()


def test_an_error_of_the_builder_is_the_callers_and_leaves_nothing(
    cache: ExecutableCache, folder: Path
) -> None:
    def fail() -> Entry:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get_or_build(A, fail)

    assert not folder.exists()
    assert cache.get_or_build(A, Builder())[1] is False


def test_an_entry_for_another_key_is_refused(cache: ExecutableCache) -> None:
    with pytest.raises(StoreError, match="key"):
        cache.get_or_build(A, Builder(B))

    assert cache.entries() == []


@pytest.mark.parametrize(
    "key", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "g" * 64]
)
def test_a_key_is_64_hex_digits(cache: ExecutableCache, key: str) -> None:
    with pytest.raises(StoreError, match="64 lower-case hex digits"):
        cache.find(key)
    with pytest.raises(StoreError, match="64 lower-case hex digits"):
        cache.get_or_build(key, Builder())


def test_threads_that_ask_at_once_build_once(cache: ExecutableCache) -> None:
    builder = Builder(size=100_000)
    barrier = threading.Barrier(8)
    results: list[tuple[Entry, bool]] = []

    def ask() -> None:
        barrier.wait()
        results.append(cache.get_or_build(A, builder))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert builder.builds == 1
    assert [entry for entry, _ in results] == [builder.entry] * 8
    assert sorted(found for _, found in results) == [False] + [True] * 7


def test_a_builder_that_does_not_finish_is_not_waited_for_for_ever(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = ExecutableCache(folder, limit_bytes=None, wait_seconds=0.1)
    builder = Builder()

    def build_inside_a_build() -> Entry:
        return impatient.get_or_build(A, builder)[0]

    entry, found = impatient.get_or_build(A, build_inside_a_build)

    assert (entry, found) == (builder.entry, False)
    assert "no lock" in caplog.text


def test_entries_say_what_is_there(cache: ExecutableCache, folder: Path) -> None:
    before = time.time()
    cache.get_or_build(A, Builder(A))
    cache.get_or_build(B, Builder(B, size=5000))
    used_long_ago(cache, B, days=3)

    newest, oldest = cache.entries()

    assert (newest.key, newest.name, newest.problem) == (A, "model a", None)
    assert (oldest.key, oldest.name) == (B, "model b")
    assert oldest.size == (folder / f"{B}.pantile").stat().st_size > 5000
    assert before - 1 <= oldest.created <= time.time()
    assert oldest.used == pytest.approx(before - 3 * 86400, abs=60)
    assert cache.size() == newest.size + oldest.size


def test_finding_an_entry_counts_as_using_it(cache: ExecutableCache) -> None:
    cache.get_or_build(A, Builder())
    used_long_ago(cache, A, days=3)

    cache.find(A)

    assert cache.entries()[0].used > time.time() - 3600


def test_an_entry_that_cannot_be_used_is_listed_with_the_reason(
    cache: ExecutableCache, folder: Path
) -> None:
    cache.get_or_build(A, Builder())
    (folder / f"{A}.pantile").chmod(0o666)
    (folder / f"{B}.pantile").write_bytes(b"nonsense")

    problems = {info.key: info.problem for info in cache.entries()}

    assert "can be changed by other users" in str(problems[A])
    assert "damaged" in str(problems[B])


def test_other_files_of_the_folder_are_neither_listed_nor_cleared(
    cache: ExecutableCache, folder: Path
) -> None:
    cache.get_or_build(A, Builder())
    others = {"notes.txt", "model.pantile", f"{A}", f"{'A' * 64}.pantile"}
    for name in others:
        (folder / name).write_text("mine")

    assert [info.key for info in cache.entries()] == [A]
    assert cache.clear() == 1
    assert set(os.listdir(folder)) == others


def test_clearing_also_removes_what_dead_processes_left(
    cache: ExecutableCache, folder: Path
) -> None:
    cache.get_or_build(A, Builder())
    locks = default_cache().folder / "locks"
    (folder / f".{B}.pantile.0123456789abcdef.pantile-tmp").touch()
    (locks / "old.lock").touch()

    cache.clear()

    assert os.listdir(folder) == []
    assert os.listdir(locks) == []


def test_removing_what_is_not_there_is_no_error(cache: ExecutableCache) -> None:
    cache.get_or_build(A, Builder())

    assert cache.remove(A)
    assert not cache.remove(A)


def test_the_least_recently_used_entry_makes_room(folder: Path) -> None:
    cache = ExecutableCache(folder, limit_bytes=25_000)
    for days, key in ((2, A), (3, B)):
        cache.get_or_build(key, Builder(key, size=10_000))
        used_long_ago(cache, key, days)

    cache.get_or_build(C, Builder(C, size=10_000))

    assert {info.key for info in cache.entries()} == {A, C}
    assert cache.size() <= 25_000


def test_using_an_entry_saves_it_from_eviction(folder: Path) -> None:
    cache = ExecutableCache(folder, limit_bytes=25_000)
    for days, key in ((2, A), (3, B)):
        cache.get_or_build(key, Builder(key, size=10_000))
        used_long_ago(cache, key, days)

    cache.find(B)
    cache.get_or_build(C, Builder(C, size=10_000))

    assert {info.key for info in cache.entries()} == {B, C}


def test_an_entry_larger_than_the_limit_evicts_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ExecutableCache(folder, limit_bytes=25_000)
    cache.get_or_build(A, Builder(A))
    builder = Builder(B, size=30_000)

    assert cache.get_or_build(B, builder) == (builder.entry, False)

    assert [info.key for info in cache.entries()] == [A]
    assert "PANTILE_CACHE_LIMIT" in caplog.text


def test_a_folder_without_limit_keeps_everything(cache: ExecutableCache) -> None:
    for number in range(20):
        key = f"{number:064x}"
        cache.get_or_build(key, Builder(key, size=10_000))

    assert len(cache.entries()) == 20


def test_the_default_cache_keeps_its_locks_beside_its_entries(folder: Path) -> None:
    default_cache().get_or_build(A, Builder())

    assert sorted(os.listdir(default_cache().folder)) == [f"{A}.pantile", "locks"]
    assert os.listdir(default_cache().folder / "locks") == []


def test_a_cache_that_cannot_be_written_is_one_message(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache = ExecutableCache(tmp_path / "file" / "cache", limit_bytes=None)
    first, second = Builder(A), Builder(B)

    assert cache.get_or_build(A, first) == (first.entry, False)
    assert cache.get_or_build(B, second) == (second.entry, False)

    (message,) = [record.getMessage() for record in caplog.records]
    assert f"{cache.folder}: Not a directory" in message
