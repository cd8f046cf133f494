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

_PAIRS = "avx512_bf16"
_FLAGS = frozenset({"amx_tile", "amx_bf16", _PAIRS})
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def is_wanted() -> bool:
    """Has nobody switched it off?"""
    return os.environ.get(SWITCH) != "0"


@cache
def is_granted() -> bool:
    """Ask for the unit; may programs of this process use it?"""
    if not _flags() >= _FLAGS:
        return False
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return answer == 0


@cache
def multiplies_pairs() -> bool:
    """Does the vector unit multiply pairs of bfloat16 faster than floats?

    CPUs with a unit for matrices have the instruction, too, but at less than the speed of floats.
    """
    return _PAIRS in _flags() and "amx_tile" not in _flags()


@cache
def _flags() -> frozenset[str]:
    """What Linux says that this CPU can do."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(flags.split())
