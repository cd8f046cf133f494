"""No search for garbage while many nodes are made that all stay, and one where many are left."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_stops = 0
"""How many have stopped the search that would go on without them."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Python looks for no cycles inside: in a capture of W3 that took a tenth of the time."""
    global _stops
    with _lock:
        stops = gc.isenabled()
        gc.disable()
        _stops += stops
    try:
        yield
    finally:
        with _lock:
            _stops -= stops
            if stops:
                gc.enable()


def free_left_graphs() -> None:
    """Free what was made and left since the last search: nodes of a graph hold each other.

    Python's memory hardly ever shrinks, so what is made next should take the place of that. If the
    user has switched the search off, nothing is done.
    """
    if _stops or gc.isenabled():
        gc.collect(1)


def forget_source_lines() -> None:
    """Drop the lines of files that Python keeps for messages; they are read again if needed.

    Torch asks for stack traces where it makes fake tensors, and for sources while it is imported:
    that leaves 15 000 lines. What is in no file, such as the cells of a notebook, stays.
    """
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is not None:  # the time of the file
            linecache.cache.pop(name, None)
