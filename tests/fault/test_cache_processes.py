"""Many processes, one cache: one of them builds, whoever dies."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fault.cache_faults import KEY, CountingBuilder, entry

from pantile.store.cache import ExecutableCache, default_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutableCache:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "default"))
    return ExecutableCache(tmp_path / "cache", limit_bytes=None)


def fork(work: Callable[[], None]) -> int:
    """A child that ends with status 0 if `work` does not raise."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def statuses(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def ask(cache: ExecutableCache, builder: CountingBuilder, start: int) -> Callable[[], None]:
    """Wait for the start (the other end of the pipe is closed), then use the cache."""

    def work() -> None:
        os.read(start, 1)
        assert cache.get_or_build(KEY, builder)[0] == builder.built

    return work


def start_together(cache: ExecutableCache, builder: CountingBuilder, count: int) -> list[int]:
    """Children that all use the cache, from the same moment on."""
    start, gun = os.pipe()

    def work() -> None:
        os.close(gun)
        ask(cache, builder, start)()

    children = [fork(work) for _ in range(count)]
    os.close(gun)
    os.close(start)
    return children


def assert_one_valid_file(cache: ExecutableCache, want: object) -> None:
    assert os.listdir(cache.folder) == [f"{KEY}.pantile"]
    assert cache.find(KEY) == want
    assert os.listdir(default_cache().folder / "locks") == []


def take_a_while() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)


def test_twenty_processes_build_once(cache: ExecutableCache, tmp_path: Path) -> None:
    builder = CountingBuilder(tmp_path / "tally", entry(size=200_000), first=take_a_while)

    children = start_together(cache, builder, 20)

    assert statuses(children) == [0] * 20
    assert builder.builds == 1
    assert_one_valid_file(cache, builder.built)


def test_twenty_processes_find_a_damaged_entry_and_build_once(
    cache: ExecutableCache, tmp_path: Path
) -> None:
    builder = CountingBuilder(tmp_path / "tally", entry(size=200_000))
    cache.get_or_build(KEY, entry)
    file = cache.folder / f"{KEY}.pantile"
    file.write_bytes(file.read_bytes()[:-1])

    children = start_together(cache, builder, 20)

    assert statuses(children) == [0] * 20
    assert builder.builds == 1
    assert_one_valid_file(cache, builder.built)


def test_another_process_takes_over_from_a_killed_builder(
    cache: ExecutableCache, tmp_path: Path
) -> None:
    building, tell = os.pipe()

    def never_finish() -> None:
        os.write(tell, str(os.getpid()).encode())
        signal.pause()

    builder = CountingBuilder(tmp_path / "tally", entry(), first=never_finish)
    children = start_together(cache, builder, 5)
    killed = int(os.read(building, 20))

    os.kill(killed, signal.SIGKILL)

    ends = dict(zip(children, statuses(children), strict=True))
    assert ends.pop(killed) == -signal.SIGKILL
    assert list(ends.values()) == [0] * 4
    assert builder.builds == 2
    assert_one_valid_file(cache, builder.built)
    os.close(building)
    os.close(tell)


def test_a_builder_that_fails_passes_the_task_on(cache: ExecutableCache, tmp_path: Path) -> None:
    def fail() -> None:
        raise MemoryError

    builder = CountingBuilder(tmp_path / "tally", entry(), first=fail)

    children = start_together(cache, builder, 4)

    assert sorted(statuses(children)) == [0, 0, 0, 1]
    assert builder.builds == 2
    assert_one_valid_file(cache, builder.built)


def test_twenty_rounds_with_random_kills(cache: ExecutableCache, tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(20):
        builder = CountingBuilder(tmp_path / f"tally{number}", entry(size=500_000))
        children = start_together(cache, builder, 8)
        for child in chance.sample(children, 3):
            os.kill(child, signal.SIGKILL)

        ends = statuses(children)

        assert sorted(ends)[3:] == [0] * 5, ends
        assert all(end in (0, -signal.SIGKILL) for end in ends)
        # A killed writer may leave its temporary file: the next write or clear removes it.
        assert cache.find(KEY) == builder.built
        cache.clear()
        assert os.listdir(cache.folder) == []


def test_eviction_and_use_at_the_same_time(cache: ExecutableCache, tmp_path: Path) -> None:
    small = ExecutableCache(cache.folder, limit_bytes=120_000)
    keys = [f"{number:064x}" for number in range(6)]

    def use(seed: int) -> Callable[[], None]:
        def work() -> None:
            chance = random.Random(seed)
            for _ in range(30):
                key = chance.choice(keys)
                want = entry(key, size=40_000)
                assert small.get_or_build(key, lambda: want)[0] == want  # noqa: B023

        return work

    assert statuses([fork(use(seed)) for seed in range(4)]) == [0] * 4
    assert small.size() <= 120_000
    assert all(info.problem is None for info in small.entries())
