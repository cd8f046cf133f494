"""`pantile run script.py …`: run an IPU script unchanged.

A script that imports Paddle finds the IPU API in it, before its first line. Other scripts need
nothing: `import poptorch` finds Pantile already.
"""

from __future__ import annotations

import argparse
import ast
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pantile.errors import Error

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: Commands) -> None:
    """Add `pantile run` to the command line."""
    parser = commands.add_parser(
        "run", help="run an IPU script unchanged", description="Run a PopTorch or Paddle script."
    )
    parser.add_argument(
        "--paddle",
        action="store_true",
        help="put the IPU API into Paddle even if the script itself does not import it",
    )
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    script = Path(arguments.script)
    if not script.is_file():
        raise Error(f"{script} is not a file", fix="name the script to run")
    if arguments.paddle or "paddle" in imported_by(script):
        from pantile.paddle.script import run_script

        run_script(arguments.script, arguments.arguments)
        return 0
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
    runpy.run_path(arguments.script, run_name="__main__")
    return 0


def imported_by(script: Path) -> set[str]:
    """The packages a script imports, anywhere in it; none if it is not Python."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
