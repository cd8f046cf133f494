"""The C++ compiler: from the text of a program to the bytes of a shared object.

The kernels and the host program are compiled side by side, in a folder of their own that is removed
afterwards. Nothing is installed and nothing is left behind.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import torch

from pantile.lowering.compiler import find_compiler, run_together, working_folder, write_unit
from pantile.lowering.inductor.generate import Sources

_LANGUAGE = ("-std=c++20", "-fPIC", "-w", "-DNDEBUG")
_SPEED = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffp-contract=off",
    "-fno-tree-loop-vectorize",
)
_INDUCTOR = (
    "-DTORCH_INDUCTOR_CPP_WRAPPER",
    "-DSTANDALONE_TORCH_HEADER",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
)
_PREFIX = "#include <torch/csrc/inductor/cpp_prefix.h>"


def build(sources: Sources) -> bytes:
    """Compile and link; the bytes of the object."""
    with working_folder() as folder:
        return _build(sources, folder)


def _build(sources: Sources, folder: Path) -> bytes:
    # Twice as fast to compile as -O1, and no slower to run: it is one long row of calls.
    units = {"host": (sources.host, [*_LANGUAGE, "-Og"])}
    for number, text in enumerate(_divided(sources.kernels)):
        units[f"kernels{number}"] = (text, [*_LANGUAGE, *_SPEED, *_INDUCTOR, *_vector_flags()])
    if "aoti_torch_cpu_max_pool2d_with_indices(" in sources.host:
        pool = files("pantile.lowering.inductor").joinpath("pool.cpp").read_text(encoding="utf-8")
        units["pool"] = (pool, [*_LANGUAGE, *_SPEED, "-ftree-loop-vectorize"])
    commands = []
    for name, (text, flags) in units.items():
        unit = write_unit(folder, name, text)
        commands.append([find_compiler(), "-c", unit, *flags, *_includes()])
    run_together(commands, folder)
    library = Path(torch.__file__).parent / "lib"
    objects = [f"{name}.o" for name in units]
    link = ["-shared", "-fopenmp", "-o", "program.so", *objects, f"-L{library}", "-ltorch_cpu"]
    run_together([[find_compiler(), *link]], folder)
    return (folder / "program.so").read_bytes()


def _divided(kernels: str) -> list[str]:
    """The kernels in as many units as there are cores to compile them, each worth its start."""
    parts = [part for part in kernels.split(_PREFIX) if part.strip()]
    before = parts.pop(0) if parts and "extern" not in parts[0] else ""
    count = max(1, min(os.cpu_count() or 1, len(kernels) // 20_000 + 1, len(parts)))
    groups: list[list[str]] = [[] for _ in range(count)]
    for part in sorted(parts, key=len, reverse=True):
        min(groups, key=lambda group: sum(map(len, group))).append(part)
    return [f"{before}\n{_PREFIX}\n" + "\n".join(group) for group in groups if group]


def _vector_flags() -> list[str]:
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    # As in `generate.Settings`: what the CPU says is believed.
    with config.patch({"cpp.vec_isa_ok": True}):
        isa = pick_vec_isa()
    macros = [f"-D{macro}" for macro in isa.build_macro() if macro]
    return [*macros, *isa.build_arch_flags().split()]


def _includes() -> list[str]:
    folder = Path(torch.__file__).parent / "include"
    return [f"-I{folder}", f"-I{folder / 'torch' / 'csrc' / 'api' / 'include'}"]
