"""Where in the user's code something happened."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Installed packages may lie inside Python's library (site-packages, dist-packages).
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSIDE = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    _PACKAGE + os.sep,
    os.path.join(os.path.dirname(_PACKAGE), "poptorch") + os.sep,
    "<eval_with_key>",
    "<frozen",
)


def is_users(filename: str) -> bool:
    """True for a file that is neither torch's, nor Python's own, nor ours."""
    if filename.startswith(_LIBRARY) and "-packages" not in filename:
        return False
    return not filename.startswith(_INSIDE)


class _Uninteresting:
    """The files that no stack trace need name, for torch.fx."""

    def __contains__(self, filename: str) -> bool:
        return filename == "<string>" or not is_users(filename)


@contextmanager
def traces_of_users() -> Iterator[None]:
    """Record the user's frames in stack traces of torch.fx.

    torch's own list of files to leave out imports Dynamo and Inductor: half a second.
    """
    from torch.fx.experimental import symbolic_shapes

    module: Any = symbolic_shapes
    before = module.uninteresting_files
    module.uninteresting_files = _Uninteresting
    try:
        yield
    finally:
        module.uninteresting_files = before


def place_of_error(tb: TracebackType | None) -> str:
    """`file.py:12 in forward: code` of the innermost user frame of a traceback."""
    frames = [f for f in traceback.extract_tb(tb) if is_users(f.filename)]
    if not frames:
        return ""
    # "<string>" may be torch's generated code: it counts only where there is no file at all.
    files = [f for f in frames if not f.filename.startswith("<string>")]
    frame = (files or frames)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"


def place_of_trace(stack_trace: str | None) -> str:
    """`file.py:12` of the innermost user frame in a stack trace recorded by torch.fx."""
    if not stack_trace:
        return ""
    place = ""
    for line in stack_trace.splitlines():
        line = line.strip()
        if line.startswith('File "'):
            filename, _, rest = line[6:].partition('"')
            if is_users(filename):
                place = f"{filename}:{rest.removeprefix(', line ').partition(',')[0]}"
    return place
