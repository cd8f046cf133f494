"""Compile the files of a program, side by side."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from pantile.lowering.compiler import find_compiler, run_together, working_folder

FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fno-strict-aliasing",
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


def build(texts: Sequence[str], *, checked: bool = False) -> bytes:
    """The bytes of the shared object made from these files."""
    flags = [*FLAGS, CHECKED] if checked else [*FLAGS]
    with working_folder() as folder:
        names = [f"unit{number}" for number in range(len(texts))]
        for name, text in zip(names, texts, strict=True):
            (folder / f"{name}.cpp").write_text(text, encoding="utf-8")
        run_together([[find_compiler(), *flags, "-c", f"{name}.cpp"] for name in names], folder)
        library = Path(torch.__file__).parent / "lib"
        objects = [f"{name}.o" for name in names]
        link = ["-shared", "-o", "program.so", *objects, f"-L{library}", "-ltorch_cpu", "-lm"]
        run_together([[find_compiler(), *link]], folder)
        return (folder / "program.so").read_bytes()
