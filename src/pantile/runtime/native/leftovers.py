"""What a compilation and the reference engine leave behind, given back when native code takes over.

    MKL        packed operands of products, for every thread that computed one: 5 to 7 MiB for W3
    malloc     memory that was freed again: graphs, C++ text, what the self-check copied

Both are allocated anew if somebody else in the process needs them. Nothing is done where torch has
no MKL, or the C library is not glibc.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Any

import torch

_FREE_BUFFERS = ("MKL_Free_Buffers", "mkl_serv_free_buffers")
"""In MKL of its own, and in that within torch: what nobody is using at the moment is freed."""


def give_back() -> None:
    """Free what nobody needs any more."""
    # Not through the device loop, which is linked to it: that may still be compiled.
    free_buffers = _found(_torch_library(), *_FREE_BUFFERS)
    if free_buffers is not None:
        free_buffers()
    trim = _found(ctypes.CDLL(None), "malloc_trim")
    if trim is not None:
        trim.argtypes = [ctypes.c_size_t]
        trim(0)


def _torch_library() -> ctypes.CDLL:
    """That which torch has loaded; symbols are also looked up in what it is linked to."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return ctypes.CDLL(str(path) if path.exists() else None)


def _found(library: ctypes.CDLL, *names: str) -> Any:
    """The first function of these names that is there; None if none is."""
    for name in names:
        with contextlib.suppress(AttributeError):
            return library[name]
    return None
