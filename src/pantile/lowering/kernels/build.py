"""Compile the files of a program, side by side."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from pantile.errors import ProgramError
from pantile.lowering.compiler import (
    find_compiler,
    run_together,
    stand_in,
    working_folder,
    write_unit,
)
from pantile.lowering.kernels import matrix_unit

CPU = "PANTILE_CPU"
"""The environment variable that says which CPU to write code for; that of this machine if unset."""

_CPUS = {
    "native": "all of this machine",
    "x86-64-v4": "AVX-512",
    "x86-64-v3": "AVX2 with FMA",
    "x86-64": "every 64-bit x86",
}

_FLAGS = (
    "-std=c++20",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fno-strict-aliasing",
    # gcc 12 deletes calls of kernels that only copy within the arena, unless it may not look.
    "-fno-ipa-modref",
    "-fno-ipa-pure-const",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",  # nothing is thrown through kernels
    "-fPIC",
    "-w",
)
"""Nothing here lets the compiler reorder sums or forget about NaN."""

_LEVEL = (
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-fpeel-loops",
    "-fno-schedule-insns2",
)
"""Never -O3: gcc 12 then unrolls the loop over the lanes of a sum, makes vectors of the loop around
it, and adds what a mask should have kept out (decision 111). This is as fast, too."""

CHECKED = "-DPANTILE_CHECKED"
"""Counts kernels, and fills memory with NaN before each run."""


def cpu() -> str:
    """The CPU that code is written for."""
    wanted = os.environ.get(CPU, "native")
    if wanted not in _CPUS:
        known = ", ".join(f"{name} ({what})" for name, what in _CPUS.items())
        raise ProgramError(f"{CPU} is {wanted!r}", fix=f"unset it, or take one of: {known}")
    return wanted


def has_tiles() -> bool:
    """May programs multiply by the CPU's unit for matrices? See templates/tiles.h."""
    return cpu() == "native" and matrix_unit.is_wanted() and matrix_unit.is_granted()


def multiplies_pairs() -> bool:
    """Do convolutions multiply pairs of bfloat16? See templates/conv_pairs.h."""
    return cpu() == "native" and matrix_unit.multiplies_pairs()


def target() -> tuple[str, bool]:
    """What code is written for: the CPU, and whether its unit for matrices is used."""
    return cpu(), has_tiles()


def flags() -> list[str]:
    """How the files of a program are compiled."""
    wide = platform.machine() == "x86_64" and cpu() in ("native", "x86-64-v4")
    return [*_FLAGS, *_LEVEL, f"-march={cpu()}", *(["-mprefer-vector-width=512"] if wide else [])]


_TORCH = "libtorch_cpu.so"


def build(texts: Sequence[str], *, checked: bool = False) -> bytes:
    """The bytes of the shared object made from these files."""
    compiler = find_compiler()
    command = [compiler, *flags(), *([CHECKED] if checked else [])]
    with working_folder() as folder:
        units = [write_unit(folder, f"unit{at}", text) for at, text in enumerate(texts)]
        empty = stand_in([compiler], _TORCH, folder)
        run_together([empty, *([*command, "-c", unit] for unit in units)], folder)
        objects = [f"unit{at}.o" for at in range(len(texts))]
        link = ["-shared", "-o", "program.so", *objects, "-lm", "-Wl,--no-as-needed", _TORCH]
        run_together([[compiler, *link]], folder)
        return (folder / "program.so").read_bytes()
