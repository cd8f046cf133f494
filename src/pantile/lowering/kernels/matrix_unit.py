"""Has this CPU a unit for matrices (AMX), and may this process use it?

Linux gives its registers, eight kilobytes more to save for each thread, to processes that ask. Once
granted, the permission holds for all threads and for forked children, until the process ends.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

SWITCH = "PANTILE_TILES"
"""The environment variable that keeps products away from the unit, if it is `0`."""

_FLAGS = frozenset({"amx_tile", "amx_bf16", "avx512_bf16"})
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def is_wanted() -> bool:
    """Has nobody switched it off?"""
    return os.environ.get(SWITCH) != "0"


@cache
def is_granted() -> bool:
    """Ask for the unit; may programs of this process use it?"""
    if sys.platform != "linux" or platform.machine() != "x86_64" or not _is_there():
        return False
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return answer == 0


def _is_there() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return set(flags.split()) >= _FLAGS
