"""`pantile`: what can be asked on a command line.

    pantile run script.py               run an IPU script unchanged
    pantile plan train.py --ipus 16     where to cut a model, how fast it would be
    pantile report profiles             what a report says
    pantile info | monitor | check      the (software) IPUs, what runs on them, what works here
    pantile cache list

A sub-command is a module with `add(commands)`, which adds its parser and sets `run`, the function
that takes the parsed arguments and returns the exit status.

Exit status: 0 done, 1 an error of Pantile (its message and fix are on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence

import torch

import pantile
from pantile.cli import cache, check, info, monitor, plan, report, run
from pantile.errors import Error

#: In the order `pantile --help` shows them.
COMMANDS = (run, plan, report, info, monitor, check, cache)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.run
    try:
        status = command(parsed)
        sys.stdout.flush()
    except Error as error:
        print(f"pantile: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pantile", description="Run IPU programs on the machine you have."
    )
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    parser.add_argument(
        "--version", action="version", version=f"pantile {pantile.__version__} ({versions})"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
