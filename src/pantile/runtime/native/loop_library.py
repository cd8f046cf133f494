"""The compiled device loop: built once from the C++ sources beside this file, then loaded.

    <cache>/loop/<sources, flags, torch>-<compiler>-<digest>.so

The digest is of the first part of the name and the content, so a damaged or renamed file is never
loaded: it is built again. A process that finds the file needs no compiler. Where the cache cannot
be used, the library is built in a temporary folder and the run goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from pantile.errors import CompilerMissing, StoreError
from pantile.logging import logger
from pantile.store.atomic_file import write_atomically
from pantile.store.location import default_folder
from pantile.store.lock import exclusive
from pantile.store.trust import check_trusted, open_trusted

_SOURCES = ("loop.cpp", "plan.h", "sums.h", "workers.h")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
_COMPILERS = ("g++", "c++", "clang++")
_KEPT = 8  # libraries of other versions; each has about 100 kB
_BUILD_SECONDS = 300.0
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}-([0-9a-f]{64})\.so")

_loading = threading.Lock()


def native_folder() -> Path:
    """Where compiled device loops are kept: `loop/` in the user's cache folder."""
    return default_folder() / "loop"


def find_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler: `$CXX`, else the first of g++, c++, clang++ on the path."""
    command = _command()
    if command is None:
        looked = os.environ.get("CXX") or ", ".join(_COMPILERS)
        raise CompilerMissing(
            f"the native engine needs a C++ compiler, and none was found (looked for {looked})",
            fix='install one with "apt install g++", or run without: Options.engine("reference")',
        )
    return command


def link_flags() -> tuple[str, ...]:
    """What to add to a link command so that the library finds torch's C functions.

    torch is always loaded before, so the loader finds it by its name and no path is recorded.
    """
    return ("-L", str(Path(torch.__file__).parent / "lib"), "-ltorch_cpu")


def loop_library() -> ctypes.CDLL:
    """The device loop, compiled if it is not in the cache yet."""
    with _loading:
        return _library()


def compile_ahead() -> None:
    """Compile the device loop, if that must be done, beside whatever the caller does next."""

    def work() -> None:
        with contextlib.suppress(CompilerMissing, StoreError, OSError):  # who needs it will say so
            loop_library()

    threading.Thread(target=work, name="pantile-loop").start()


@functools.cache
def _library() -> ctypes.CDLL:
    folder, key = native_folder(), _source_key()
    library = _from_cache(folder, key, _compiler_key(_command()))
    if library is not None:
        return library
    compiler = _compiler_key(find_compiler())
    locks = default_folder() / "locks"
    with contextlib.suppress(OSError):
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive(
        locks / f"loop-{key}.lock",
        wait_seconds=_BUILD_SECONDS,
        notice_after=5.0,
        notice=lambda owner: logger.info("Waiting for %s to compile the device loop", owner),
    ):
        return _from_cache(folder, key, compiler) or _built(folder, key, compiler)


def _command() -> tuple[str, ...] | None:
    named = os.environ.get("CXX")
    for text in (named,) if named else _COMPILERS:
        words = shlex.split(text)
        path = shutil.which(words[0]) if words else None
        if path is not None:
            return (path, *words[1:])
    return None


def _source_key() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    digest.update(repr((_FLAGS, torch.__version__, platform.machine())).encode())
    return digest.hexdigest()[:16]


def _compiler_key(command: Sequence[str] | None) -> str:
    """Which compiler: asking it for its version would cost a process at every start."""
    if command is None:
        return "?" * 8  # any: what is compiled already needs none
    path = os.path.realpath(command[0])
    status = os.stat(path)
    identity = (path, status.st_size, status.st_mtime_ns, *command[1:])
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:8]


def _from_cache(folder: Path, key: str, compiler: str) -> ctypes.CDLL | None:
    for path in sorted(folder.glob(f"{key}-{compiler}-*.so")):
        try:
            descriptor = open_trusted(path)
        except FileNotFoundError:
            continue
        except StoreError as error:
            logger.warning("The compiled device loop is not used: %s", error)
            continue
        with open(descriptor, "rb") as file:
            content = file.read()
        if path.name.endswith(f"-{_digest(key, content)}.so"):
            return ctypes.CDLL(str(path))
        logger.warning("%s is damaged; the device loop is compiled again", path)
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _digest(key: str, content: bytes) -> str:
    return hashlib.sha256(key.encode() + content).hexdigest()


def _built(folder: Path, key: str, compiler: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="pantile-loop-") as temporary:
        path = Path(temporary) / "loop.so"
        _compile(path)
        content = path.read_bytes()
        kept = folder / f"{key}-{compiler}-{_digest(key, content)}.so"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(kept, [content])
            check_trusted(kept)
        except (OSError, StoreError) as error:
            logger.warning("The compiled device loop cannot be kept: %s", error)
            return ctypes.CDLL(str(path))  # a loaded library does not need its file
        _drop_old(folder)
        return ctypes.CDLL(str(kept))


def _compile(target: Path) -> None:
    source = str(Path(__file__).with_name("loop.cpp"))
    command = [*find_compiler(), *_FLAGS, source, "-o", str(target), *link_flags(), "-ldl"]
    fix = 'install a working compiler with "apt install g++", or use Options.engine("reference")'
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerMissing(
            f"the C++ compiler {command[0]} cannot be run: {error}", fix=fix
        ) from error
    if done.returncode != 0:
        raise CompilerMissing(
            f"the C++ compiler {command[0]} cannot compile the device loop "
            f"(status {done.returncode}):\n{done.stderr[-2000:].rstrip()}",
            fix=fix,
        )


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in paths[_KEPT:]:
            path.unlink()
