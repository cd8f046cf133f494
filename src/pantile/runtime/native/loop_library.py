"""The compiled device loop: `loop/` in the user's cache folder."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from pathlib import Path

from pantile.errors import CompilerMissing, StoreError
from pantile.runtime.native.kept_library import KeptLibrary, find_compiler

__all__ = ["find_compiler", "loop_library", "native_folder"]

_FLAGS = ("-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")

_LOOP = KeptLibrary(
    "loop",
    "device loop",
    ("loop.cpp", "plan.h", "sums.h", "workers.h"),
    # -O2 takes a quarter longer, beside the first program of the user, and is no faster.
    ("-O1", "-ftree-vectorize", *_FLAGS),
    ("torch_cpu",),
)

_loading = threading.Lock()


def native_folder() -> Path:
    """Where compiled device loops are kept."""
    return _LOOP.folder


def loop_library() -> ctypes.CDLL:
    """The device loop, compiled if it is not in the cache yet."""
    with _loading:
        return _library()


def compile_ahead() -> None:
    """Compile the device loop, if that must be done, beside whatever the caller does next."""

    def work() -> None:
        with contextlib.suppress(CompilerMissing, StoreError, OSError):  # who needs it will say so
            loop_library()

    threading.Thread(target=work, name="pantile-loop").start()


@functools.cache
def _library() -> ctypes.CDLL:
    return _LOOP.loaded(ctypes.CDLL)
