"""The C++ compiler of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

from pantile.errors import CompilerFailed, CompilerMissing
from pantile.store.location import default_folder

_NAMES = ("g++", "c++", "clang++")
_MOST_SECONDS = 1200.0


def find_compiler() -> str:
    """The C++ compiler: `$CXX`, or the first of the usual names."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise CompilerMissing(
        f"there is no C++ compiler: looked for {wanted or ', '.join(_NAMES)}",
        fix="install one (`apt install g++`), name it in CXX, or run with "
        'Options.engine("reference")',
    )


@cache
def compiler_version() -> str:
    """What the compiler says about itself, in one line."""
    done = subprocess.run(
        [find_compiler(), "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.splitlines()[0] if done.stdout else "unknown"


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder for the files of one compilation, removed afterwards."""
    work = default_folder() / "build"
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        yield Path(folder)


def write_unit(folder: Path, name: str, text: str) -> str:
    """Write a file of C++; its name. Begins with moves.h: see there."""
    moves = files("pantile.lowering").joinpath("moves.h").read_text("utf-8")
    (folder / f"{name}.cpp").write_text(f"{moves}\n{text}", encoding="utf-8")
    return f"{name}.cpp"


def stand_in(compiler: Sequence[str], library: str, folder: Path) -> list[str]:
    """The command that makes an empty library of that name, to be linked against instead.

    The linker would read all symbols of torch's for 0.3 s, of which we need a dozen. They are found
    when the result is loaded, in torch's, which are there already; no path is recorded.
    """
    source, named = folder / "empty.cpp", f"-Wl,-soname,{library}"
    source.touch()
    return [*compiler, "-shared", "-nostdlib", named, "-o", str(folder / library), str(source)]


def run_together(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Run commands side by side; CompilerFailed if one fails."""
    running = [
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=_MOST_SECONDS)[1] for process in running]
    except BaseException:
        for process in running:
            process.kill()
            process.wait()
        raise
    for process, output in zip(running, outputs, strict=True):
        if process.returncode:
            first = next((line for line in output.splitlines() if "error" in line), output[:300])
            raise CompilerFailed(
                f"the C++ compiler failed: {first.strip()}",
                fix='run with Options.engine("reference")',
            )
