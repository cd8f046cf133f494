"""Disks that are full, read-only or failing: a message, no half file, and the run goes on."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fault.cache_faults import KEY, entry

import pantile
from pantile.errors import StoreError
from pantile.store.cache import ExecutableCache
from pantile.store.container import Container, read_container, write_container

OTHER = "f" * 64
ONLY_ROOT = "only root can mount a small disk"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutableCache:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "default"))
    return ExecutableCache(tmp_path / "cache", limit_bytes=None)


def in_a_child(work: Callable[[], None]) -> None:
    """Run `work` in a process of its own, because it changes limits or mounts."""
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
    assert os.waitpid(child, 0)[1] == 0


def data(size: int, fill: bytes) -> Container:
    return Container("example", {}, {"data": memoryview(fill * size)})


@pytest.mark.parametrize("limit", [0, 50, 96, 500, 2000, 3000])
def test_a_file_that_may_not_grow_is_not_left_half_written(
    cache: ExecutableCache, limit: int
) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        assert cache.get_or_build(KEY, entry) == (entry(), False)

    in_a_child(work)

    assert os.listdir(cache.folder) == []


def mount_small_disk(folder: Path, size: int) -> None:
    """A file system of `size` bytes, seen by this process only."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private = 0x00020000, (1 << 18) | (1 << 14)
    done = (
        libc.unshare(new_namespace),
        libc.mount(b"none", b"/", None, private, None),
        libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size},mode=700".encode()),
    )
    if done != (0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot mount")


def can_mount(folder: Path) -> bool:
    child = os.fork()
    if child == 0:
        try:
            mount_small_disk(folder, 1 << 20)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def fails_for_lack_of_space(path: Path, container: Container) -> bool:
    """Write the container; say whether there was no room. Any other error is an error here too."""
    try:
        write_container(path, container)
    except StoreError as error:
        if error.message == f"cannot write {path}: No space left on device":
            return True
        raise
    return False


def test_a_full_disk_keeps_the_old_file_at_every_point(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    if not can_mount(disk):
        pytest.skip(ONLY_ROOT)
    path, old, new = disk / "file", data(100_000, b"o"), data(200_000, b"n")

    def work() -> None:
        mount_small_disk(disk, 1 << 20)
        outcomes = []
        for free in range(0, 250_000, 5_000):  # 50 sizes: from no room to room enough
            write_container(path, old)
            filler = disk / "filler"
            with filler.open("wb") as file:
                status = os.statvfs(disk)
                file.write(bytes(max(0, status.f_bavail * status.f_frsize - free)))
            outcomes.append(old if fails_for_lack_of_space(path, new) else new)
            assert read_container(path, "example") == outcomes[-1]
            assert sorted(os.listdir(disk)) == ["file", "filler"]
            filler.unlink()
        assert outcomes[0] == old
        assert outcomes[-1] == new

    in_a_child(work)


def test_a_full_disk_does_not_stop_the_run(
    cache: ExecutableCache, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.folder.mkdir(mode=0o700)
    if not can_mount(cache.folder):
        pytest.skip(ONLY_ROOT)
    large = entry(size=300_000)

    def work() -> None:
        mount_small_disk(cache.folder, 1 << 17)
        assert cache.get_or_build(KEY, lambda: large) == (large, False)
        assert cache.get_or_build(KEY, lambda: large) == (large, False)
        assert os.listdir(cache.folder) == []

    in_a_child(work)

    assert capfd.readouterr().err.count("No space left on device") == 1


def test_a_read_only_cache_is_read_and_does_not_stop_the_run(
    cache: ExecutableCache, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.folder.mkdir(mode=0o700)
    if not can_mount(cache.folder):
        pytest.skip(ONLY_ROOT)

    def work() -> None:
        mount_small_disk(cache.folder, 1 << 20)
        cache.get_or_build(OTHER, lambda: entry(OTHER))
        remount, read_only = 1 << 5, 1
        folder = os.fsencode(cache.folder)
        assert ctypes.CDLL(None).mount(None, folder, None, remount | read_only, None) == 0

        assert cache.find(OTHER) == entry(OTHER)
        for _ in range(2):
            assert cache.get_or_build(KEY, entry) == (entry(), False)

    in_a_child(work)

    assert capfd.readouterr().err.count("Read-only file system") == 1


# One write under strace, which makes chosen system calls fail. The package's __init__ (and with it
# torch) is left out, so that a run takes a fraction of a second; `store` does not need it.
SCRIPT = """
import sys, types
package = types.ModuleType("pantile")
package.__path__ = [sys.argv[1]]
sys.modules["pantile"] = package
import os
from pathlib import Path
from pantile.store.cache import Entry, ExecutableCache
assert "torch" not in sys.modules
cache = ExecutableCache(Path(sys.argv[2]), limit_bytes=10**6)
built = Entry(sys.argv[3], {"name": "new"}, {"code": memoryview(b"new" * 1000)})
cache.find("0" * 64)  # whatever is imported or opened for the first time is so now
os.access("/the write begins", os.F_OK)
entry, found = cache.get_or_build(built.key, lambda: built)
os.access("/the write ends", os.F_OK)
assert entry == built and not found
print("the run went on")
"""
CALLS = ("mkdir", "openat", "write", "pwrite64", "fsync", "rename", "flock", "unlink", "ftruncate")


class Traced:
    """Runs the script with strace and knows which of its system calls belong to the write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = ExecutableCache(folder / "cache", limit_bytes=10**6)
        self.log = folder / "strace.log"
        (folder / "script.py").write_text(textwrap.dedent(SCRIPT))

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it once, in a cache that already holds another entry."""
        shutil.rmtree(self.folder / "default", ignore_errors=True)
        traced = ",".join((*CALLS, "access", "faccessat", "faccessat2"))
        command = ["strace", "-o", str(self.log), "-e", f"trace={traced}", *options]
        script = [sys.executable, "-S", "-E", str(self.folder / "script.py")]
        arguments = [str(Path(pantile.__file__).parent), str(self.cache.folder), KEY]
        environment = os.environ | {"PANTILE_CACHE_DIR": str(self.folder / "default")}
        return subprocess.run(
            [*command, *script, *arguments],
            capture_output=True, text=True, env=environment, timeout=60, check=False,
        )  # fmt: skip

    def calls_of_the_write(self) -> list[tuple[str, int]]:
        """Each call between the two marks, with its number among the calls of that name."""
        assert self.run().stdout == "the run went on\n"
        counts = dict.fromkeys(CALLS, 0)
        found = []
        inside = False
        for line in self.log.read_text().splitlines():
            inside = ("the write begins" in line) or (inside and "the write ends" not in line)
            name = line.partition("(")[0]
            if name in counts:
                counts[name] += 1
                if inside:
                    found.append((name, counts[name]))
        return found


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-o", os.devnull, "true"], check=False).returncode != 0:
        pytest.skip("strace may not trace here")
    return Traced(tmp_path)


def test_data_and_name_are_on_the_disk_in_that_order(traced: Traced) -> None:
    names = [name for name, _ in traced.calls_of_the_write()]
    renaming = names.index("rename")

    assert names.count("rename") == 1
    assert names[:renaming][-1] == "fsync"  # the data, before it gets its name
    assert names[renaming + 1 :][:2] == ["openat", "fsync"]  # the folder, which holds the name


@pytest.mark.parametrize("fault", ["error=EIO", "error=ENOSPC", "signal=KILL"])
def test_every_system_call_of_a_write_can_fail(
    traced: Traced, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(traced.folder / "default"))
    calls = traced.calls_of_the_write()
    assert {name for name, _ in calls} >= {"openat", "write", "fsync", "rename", "flock"}
    good = entry(OTHER)

    for name, number in calls:
        shutil.rmtree(traced.cache.folder, ignore_errors=True)
        traced.cache.get_or_build(OTHER, lambda: good)

        done = traced.run("-e", f"inject={name}:{fault}:when={number}")

        place = f"{name} number {number}: {done.stderr}"
        if fault != "signal=KILL":
            assert done.stdout == "the run went on\n", place
        assert traced.cache.find(OTHER) == good, place
        found = traced.cache.find(KEY)
        assert found is None or bytes(found.sections["code"]) == b"new" * 1000, place
        traced.cache.get_or_build("e" * 64, lambda: entry("e" * 64))
        left = {file for file in os.listdir(traced.cache.folder) if not file.endswith(".pantile")}
        assert left == set(), place
