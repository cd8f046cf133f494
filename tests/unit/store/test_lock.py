"""One holder at a time; a dead one holds nothing; nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from pantile.store.lock import exclusive, sweep_locks


def ignore(_: str) -> None:
    """For locks whose wait is not the subject."""


def test_it_is_held_in_the_block_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"

    with exclusive(path, wait_seconds=5, notice_after=5, notice=ignore) as alone:
        assert alone
        assert path.read_text() == str(os.getpid())

    assert os.listdir(tmp_path) == []


def test_it_is_free_again_after_an_error_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with (
        pytest.raises(ZeroDivisionError),
        exclusive(path, wait_seconds=5, notice_after=5, notice=ignore),
    ):
        raise ZeroDivisionError

    with exclusive(path, wait_seconds=0, notice_after=5, notice=ignore) as alone:
        assert alone


def test_waiting_ends_and_says_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    said: list[str] = []
    with exclusive(path, wait_seconds=0, notice_after=5, notice=ignore):
        start = time.monotonic()

        with exclusive(path, wait_seconds=0.2, notice_after=0.05, notice=said.append) as alone:
            assert not alone

        assert time.monotonic() - start < 5
        assert path.exists()
    assert said == [f"process {os.getpid()}"]


def test_no_lock_file_can_be_made_means_not_alone(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.lock"

    with exclusive(path, wait_seconds=5, notice_after=5, notice=ignore) as alone:
        assert not alone


def test_threads_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    inside: list[int] = []
    most = 0

    def enter() -> None:
        nonlocal most
        for _ in range(10):
            with exclusive(path, wait_seconds=60, notice_after=60, notice=ignore) as alone:
                assert alone
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert os.listdir(tmp_path) == []


def fork_a_holder(path: Path, *, until: int | None = None) -> int:
    """A child process that holds the lock until it is killed.

    With `until`, it also has a child of its own, which lives until a byte comes through that pipe.
    """
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with exclusive(path, wait_seconds=5, notice_after=5, notice=ignore):
            if until is not None and os.fork() == 0:
                os.write(tell, b"x")
                os.read(until, 1)
                os._exit(0)
            if until is None:
                os.write(tell, b"x")
            signal.pause()
        os._exit(0)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return child


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    child = fork_a_holder(path)
    with exclusive(path, wait_seconds=0, notice_after=5, notice=ignore) as while_alive:
        assert not while_alive

    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    with exclusive(path, wait_seconds=0, notice_after=5, notice=ignore) as afterwards:
        assert afterwards


def test_a_child_of_a_killed_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    until, end = os.pipe()
    child = fork_a_holder(path, until=until)

    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with exclusive(path, wait_seconds=0, notice_after=5, notice=ignore) as alone:
        os.write(end, b"x")
        assert alone

    os.close(until)
    os.close(end)


def test_sweeping_removes_only_the_files_of_dead_holders(tmp_path: Path) -> None:
    living, dead = tmp_path / "living.lock", tmp_path / "dead.lock"
    dead.write_text("1")
    with exclusive(living, wait_seconds=0, notice_after=5, notice=ignore):
        sweep_locks(tmp_path)

        assert os.listdir(tmp_path) == ["living.lock"]
