"""The compiled device loop: `loop/` in the user's cache folder."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path

from pantile.runtime.native.kept_library import KeptLibrary, find_compiler, link_flags

__all__ = ["find_compiler", "link_flags", "loop_library", "native_folder"]

_LOOP = KeptLibrary(
    "loop",
    "device loop",
    ("loop.cpp", "plan.h", "sums.h", "workers.h"),
    ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    (*link_flags(), "-ldl"),
)

_loading = threading.Lock()


def native_folder() -> Path:
    """Where compiled device loops are kept."""
    return _LOOP.folder


def loop_library() -> ctypes.CDLL:
    """The device loop, compiled if it is not in the cache yet."""
    with _loading:
        return _library()


@functools.cache
def _library() -> ctypes.CDLL:
    return _LOOP.loaded(ctypes.CDLL)
