"""`gc-info` and `gc-monitor`: the old names, which step aside when the real tools are there."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType

from pantile.cli import info as info_command
from pantile.cli import monitor as monitor_command
from pantile.errors import Error


def info() -> int:
    """`gc-info`."""
    return _run("gc-info", info_command)


def monitor() -> int:
    """`gc-monitor`."""
    return _run("gc-monitor", monitor_command)


def _run(name: str, command: ModuleType) -> int:
    real = other_tool(name, Path(sys.argv[0]))
    if real is not None:
        os.execv(real, [str(real), *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog=name, description=f"{command.__doc__}".splitlines()[0])
    command.arguments(parser)
    try:
        return int(command.run(parser.parse_args()))
    except Error as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


def other_tool(name: str, own: Path) -> Path | None:
    """A program of that name on the PATH that is not this one."""
    try:
        mine = own.resolve(strict=True)
    except OSError:
        mine = None
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = Path(folder) / name
        if not (folder and found.is_file() and os.access(found, os.X_OK)):
            continue
        if found.resolve() != mine and not _is_ours(found):
            return found
    return None


def _is_ours(script: Path) -> bool:
    """Whether it is the same command installed in another environment."""
    with open(script, "rb") as file:
        return b"pantile.cli.old_names" in file.read(4096)
