"""Libraries of our own C++ sources: built once, kept in the user's cache, then loaded.

    <cache>/<name>/<sources, flags, torch>-<compiler>-<digest>.so

The digest is of the first part of the name and the content, so a damaged or renamed file is never
loaded: it is built again. A process that finds the file needs no compiler. Where the cache cannot
be used, the library is built in a temporary folder and the run goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from pantile.errors import CompilerMissing, StoreError
from pantile.logging import logger
from pantile.lowering.compiler import stand_in
from pantile.store.atomic_file import write_atomically
from pantile.store.location import default_folder
from pantile.store.lock import exclusive
from pantile.store.trust import check_trusted, open_trusted

Loaded = TypeVar("Loaded")

_COMPILERS = ("g++", "c++", "clang++")
_KEPT = 8  # libraries of other versions; each has about 100 kB
_BUILD_SECONDS = 300.0
_NICENESS = 10
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}-([0-9a-f]{64})\.so")


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


def _command() -> tuple[str, ...] | None:
    named = os.environ.get("CXX")
    for text in (named,) if named else _COMPILERS:
        words = shlex.split(text)
        path = shutil.which(words[0]) if words else None
        if path is not None:
            return (path, *words[1:])
    return None


@dataclass(frozen=True)
class KeptLibrary:
    """What is built, from which sources beside this file; the first one includes the others."""

    name: str
    what: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]
    #: Those of torch that it calls.
    libraries: tuple[str, ...]
    #: What else the compiled code depends on.
    versions: tuple[Any, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return default_folder() / self.name

    def kept(self, load: Callable[[str], Loaded]) -> Loaded | None:
        """The library, loaded from the cache; None if it is not there."""
        return self._from_cache(self._key(), _compiler_key(_command()), load)

    def loaded(self, load: Callable[[str], Loaded]) -> Loaded:
        """The library, compiled if it is not in the cache yet."""
        key = self._key()
        library = self._from_cache(key, _compiler_key(_command()), load)
        if library is not None:
            return library
        compiler = _compiler_key(find_compiler())
        locks = default_folder() / "locks"
        with contextlib.suppress(OSError):
            locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(
            locks / f"{self.name}-{key}.lock",
            wait_seconds=_BUILD_SECONDS,
            notice_after=5.0,
            notice=lambda owner: logger.info("Waiting for %s to compile the %s", owner, self.what),
        ):
            found = self._from_cache(key, compiler, load)
            return self._built(key, compiler, load) if found is None else found

    def _key(self) -> str:
        digest = hashlib.sha256()
        for name in self.sources:
            digest.update((Path(__file__).parent / name).read_bytes())
        versions = (self.flags, torch.__version__, platform.machine(), *self.versions)
        digest.update(repr(versions).encode())
        return digest.hexdigest()[:16]

    def _from_cache(self, key: str, compiler: str, load: Callable[[str], Loaded]) -> Loaded | None:
        for path in sorted(self.folder.glob(f"{key}-{compiler}-*.so")):
            try:
                descriptor = open_trusted(path)
            except FileNotFoundError:
                continue
            except StoreError as error:
                logger.warning("The compiled %s is not used: %s", self.what, error)
                continue
            with open(descriptor, "rb") as file:
                content = file.read()
            if path.name.endswith(f"-{_digest(key, content)}.so"):
                return load(str(path))
            logger.warning("%s is damaged; the %s is compiled again", path, self.what)
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def _built(self, key: str, compiler: str, load: Callable[[str], Loaded]) -> Loaded:
        with tempfile.TemporaryDirectory(prefix=f"pantile-{self.name}-") as temporary:
            path = Path(temporary) / f"{self.name}.so"
            self._compile(path)
            content = path.read_bytes()
            kept = self.folder / f"{key}-{compiler}-{_digest(key, content)}.so"
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(kept, [content])
                check_trusted(kept)
            except (OSError, StoreError) as error:
                logger.warning("The compiled %s cannot be kept: %s", self.what, error)
                return load(str(path))  # a loaded library does not need its file
            _drop_old(self.folder)
            return load(str(kept))

    def _compile(self, target: Path) -> None:
        source = str(Path(__file__).with_name(self.sources[0]))
        compiler, folder = find_compiler(), target.parent
        names = [f"lib{name}.so" for name in self.libraries]
        links = ["-Wl,--no-as-needed", *(str(folder / name) for name in names), "-ldl"]
        commands = [stand_in(compiler, name, folder) for name in names]
        commands.append([*compiler, *self.flags, source, "-o", str(target), *links])
        fix = (
            'install a working compiler with "apt install g++", or use Options.engine("reference")'
        )
        try:
            done = [_run(command) for command in commands]
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerMissing(
                f"the C++ compiler {compiler[0]} cannot be run: {error}", fix=fix
            ) from error
        for status, errors in done:
            if status != 0:
                raise CompilerMissing(
                    f"the C++ compiler {compiler[0]} cannot compile the {self.what} "
                    f"(status {status}):\n{errors[-2000:].rstrip()}",
                    fix=fix,
                )


def _run(command: Sequence[str]) -> tuple[int, str]:
    """The status of a command and what it complains about.

    It comes second to whatever else wants the cores: the compilation of the program itself.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        try:
            _, errors = process.communicate(timeout=_BUILD_SECONDS)
        except BaseException:
            process.kill()
            raise
    return process.returncode, errors


def _compiler_key(command: Sequence[str] | None) -> str:
    """Which compiler: asking it for its version would cost a process at every start."""
    if command is None:
        return "?" * 8  # any: what is compiled already needs none
    path = os.path.realpath(command[0])
    status = os.stat(path)
    identity = (path, status.st_size, status.st_mtime_ns, *command[1:])
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:8]


def _digest(key: str, content: bytes) -> str:
    return hashlib.sha256(key.encode() + content).hexdigest()


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in paths[_KEPT:]:
            path.unlink()
