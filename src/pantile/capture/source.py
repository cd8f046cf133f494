"""Where in the user's code something happened."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import fx

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


@cache
def is_users(filename: str) -> bool:
    """True for a file that is neither torch's, nor Python's own, nor ours."""
    if filename.startswith(_LIBRARY) and "-packages" not in filename:
        return False
    return not filename.startswith(_INSIDE)


def record_places(tracer: Any) -> None:
    """Let a tracer of torch.fx note for each node which line of the user's made it.

    torch's own way formats the whole stack for every node: a sixth of a capture of W3.
    """
    create: Callable[..., fx.Node] = tracer.create_node

    def create_node(kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = create(kind, *args, **kwargs)
        if not node.stack_trace and kind not in ("placeholder", "output"):
            node.stack_trace = _trace_of(sys._getframe(1))
        return node

    tracer.create_node = create_node


def _trace_of(frame: FrameType | None) -> str | None:
    """The innermost frame of the user's that is, or is called by, a `forward`."""
    users: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if users is None and code.co_filename != "<string>" and is_users(code.co_filename):
            users = frame
        if users is not None and code.co_name == "forward":
            where = users.f_code
            return f'File "{where.co_filename}", line {users.f_lineno}, in {where.co_name}'
        frame = frame.f_back
    return None


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
