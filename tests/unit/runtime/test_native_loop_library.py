"""The compiled device loop in the cache: built once, never loaded damaged, usable without cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pantile.errors import CompilerMissing
from pantile.runtime.native import loop_library as module
from pantile.runtime.native.loop_library import find_compiler, loop_library, native_folder

# Stands for a compiler: copies a library that was compiled before, and notes that it ran. What the
# library would be linked against, it is asked for first, and leaves alone.
COMPILER = """#!/bin/sh
case " $* " in *" -nostdlib "*) exit 0 ;; esac
echo run >> {log}
while [ "$1" != "-o" ]; do shift; done
{pause}
cp {library} "$2"
"""


@pytest.fixture
def compiled() -> Path:
    """The library, compiled by the real compiler."""
    return Path(loop_library()._name)


@pytest.fixture
def cache(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a compiler that is quick."""
    write_compiler(tmp_path, compiled)
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "cache"))
    module._library.cache_clear()
    yield tmp_path / "cache" / "loop"
    module._library.cache_clear()


def write_compiler(folder: Path, library: Path, pause: str = "") -> None:
    script = folder / "compiler"
    script.write_text(COMPILER.format(log=folder / "log", library=library, pause=pause))
    script.chmod(0o700)


def builds(cache: Path) -> int:
    log = cache.parent.parent / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def load_anew() -> str:
    module._library.cache_clear()
    return str(loop_library()._name)


def test_the_second_process_compiles_nothing(cache: Path) -> None:
    first = load_anew()
    second = load_anew()

    assert first == second and Path(first).parent == cache == native_folder()
    assert builds(cache) == 1
    assert [path.name for path in cache.iterdir()] == [Path(first).name]
    assert Path(first).stat().st_mode & 0o777 == 0o600


def test_another_compiler_compiles_its_own(cache: Path, tmp_path: Path, compiled: Path) -> None:
    first = load_anew()
    write_compiler(tmp_path, compiled, pause="# changed")

    assert load_anew() != first
    assert builds(cache) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_library_is_compiled_again(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(load_anew())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    damaged = {"flip": content, "cut": content[:-100], "empty": b""}[damage]
    path.unlink()  # it is loaded: writing into it would change this process
    path.write_bytes(damaged)
    path.chmod(0o600)

    assert Path(load_anew()).read_bytes() != damaged
    assert builds(cache) == 2
    assert "damaged" in caplog.text


def test_a_library_that_others_can_change_is_not_loaded(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(load_anew())
    path.chmod(0o666)

    load_anew()

    assert builds(cache) == 2
    assert "can be changed by other users" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_renamed_library_is_not_loaded(cache: Path) -> None:
    path = Path(load_anew())
    key, _, rest = path.name.partition("-")
    shutil.copy(path, cache / f"{'0' * 16}-{rest}")
    os.rename(cache / f"{'0' * 16}-{rest}", cache / f"{key}-{rest[:8]}-{'1' * 64}.so")
    path.unlink()

    assert load_anew() == str(path)
    assert builds(cache) == 2


def test_a_compiled_library_needs_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = load_anew()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    assert load_anew() == path


def test_a_missing_compiler_is_told_with_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(CompilerMissing, match=r"g\+\+, c\+\+, clang\+\+") as caught:
        loop_library()

    assert "apt install g++" in str(caught.value)
    assert 'Options.engine("reference")' in str(caught.value)


def test_a_compiler_named_by_the_user_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")

    with pytest.raises(CompilerMissing, match="no-such-compiler"):
        find_compiler()


def test_a_compiler_may_have_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh -m64")

    assert find_compiler() == (shutil.which("sh"), "-m64")


def test_what_a_broken_compiler_says_is_told(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiler").write_text("#!/bin/sh\necho no headers >&2\nexit 3\n")

    with pytest.raises(CompilerMissing, match=r"(?s)status 3.*no headers"):
        loop_library()

    assert not cache.exists() or not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_costs_only_a_message(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "file" / "cache"))

    library = loop_library()

    assert library.pantile_loop_create
    assert not Path(library._name).exists()
    assert "cannot be kept" in caplog.text


def test_of_many_processes_one_compiles(cache: Path, tmp_path: Path, compiled: Path) -> None:
    write_compiler(tmp_path, compiled, pause="sleep 0.2")
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if loop_library().pantile_loop_run else 1
            finally:
                os._exit(status)
        children.append(child)

    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    assert ends == [0] * 6
    assert builds(cache) == 1
    assert len(list(cache.iterdir())) == 1


def test_libraries_of_old_versions_are_dropped(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    for age in range(20):
        old = cache / f"{age:016x}-00000000-{'a' * 64}.so"
        old.write_bytes(b"")
        os.utime(old, (1e9 - age, 1e9 - age))

    path = load_anew()

    assert len(list(cache.iterdir())) == 8
    assert Path(path).exists()
