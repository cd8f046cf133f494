"""What torch notes about the operators being recorded, kept apart from other threads.

`torch.fx.traceback` has one dictionary for the whole process: the tags of stages go there, and so
does every node that an `fx.Interpreter` runs, in any thread. A program compiled in the background
would take the tags off the one that is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.fx.traceback

_traceback: Any = torch.fx.traceback


@contextmanager
def own_metadata() -> Iterator[None]:
    """Until the block ends, interpreters of other threads leave the dictionary alone."""
    original, recording = _traceback.set_current_meta, threading.get_ident()

    def set_current_meta(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        if threading.get_ident() != recording:
            return nullcontext()
        meta: AbstractContextManager[None] = original(*args, **kwargs)
        return meta

    _traceback.set_current_meta = set_current_meta
    try:
        yield
    finally:
        _traceback.set_current_meta = original
