"""Run an unchanged script with Paddle's IPU API in place.

The API is there before the first line of the script: what it imports from Paddle by name
(`from paddle import IPUPlace`) is ours already.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pantile.errors import Error
from pantile.paddle.install import install


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a script as `python script.py …` would."""
    script = Path(path)
    if not script.is_file():
        raise Error(f"{path} is not a file", fix="name the script to run")
    install()
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module as `python -m name …` would: `pytest`, `unittest`, a package of the user's."""
    sys.path.insert(0, os.getcwd())
    if not _is_module(name):
        raise Error(f"there is no module {name}", fix="check its name, and the current folder")
    install()
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that should hold it
        return False
