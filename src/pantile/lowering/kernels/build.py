"""Compile the one file of a program."""

from __future__ import annotations

from pathlib import Path

import torch

from pantile.lowering.compiler import find_compiler, run_together, working_folder

FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fno-strict-aliasing",
    # Integers wrap around, as in torch; hashes need it.
    "-fwrapv",
    # gcc 12 deletes calls of kernels that only copy within the arena, unless it may not look.
    "-fno-ipa-modref",
    "-fno-ipa-pure-const",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    "-w",
)
"""Nothing here lets the compiler reorder sums or forget about NaN."""

CHECKED = "-DPANTILE_CHECKED"
"""Counts kernels, and fills memory with NaN before each run."""


def build(text: str, *, checked: bool = False) -> bytes:
    """The bytes of the shared object."""
    with working_folder() as folder:
        (folder / "program.cpp").write_text(text, encoding="utf-8")
        library = Path(torch.__file__).parent / "lib"
        flags = [*FLAGS, CHECKED] if checked else [*FLAGS]
        command = [find_compiler(), *flags, "-shared", "-o", "program.so", "program.cpp"]
        run_together([[*command, f"-L{library}", "-ltorch_cpu", "-lm"]], folder)
        return (folder / "program.so").read_bytes()
