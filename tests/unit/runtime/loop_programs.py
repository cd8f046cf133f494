"""Tiny compiled programs to run in a device loop, and plans around them."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pantile.runtime.inputs import Slicing
from pantile.runtime.native.plan import (
    ArgumentSpec,
    CompiledProgram,
    Plan,
    ResultSpec,
    Schedule,
)

_folder = tempfile.TemporaryDirectory(prefix="pantile-programs-")


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """The program `name` of loop_programs.c."""
    path = Path(_folder.name) / f"{name}.so"
    source = Path(__file__).with_name("loop_programs.c")
    command = ["gcc", "-O1", "-shared", "-fPIC", f"-DPROGRAM_{name}", str(source), "-o", str(path)]
    subprocess.run(
        [*command, f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-ldl"], check=True
    )
    return ctypes.CDLL(str(path))


def program(name: str, *, outputs: int = 0) -> CompiledProgram:
    """That program, for a plan."""
    return CompiledProgram(library(name), outputs)


def schedule(
    iterations: int = 1,
    accumulation: int = 1,
    replicas: int = 1,
    *,
    wants: Callable[[int, int], bool] = lambda iteration, step: True,
) -> Schedule:
    """The usual one: rows in order, all results wanted."""
    return Schedule.of(Slicing(iterations, accumulation, replicas), wants)


def plan(
    body: CompiledProgram,
    inputs: Sequence[Any],
    *,
    arguments: Sequence[ArgumentSpec] = (),
    results: Sequence[ResultSpec] = (),
    **rest: Any,
) -> Plan:
    """A plan with one micro-batch, if `rest` says nothing else."""
    return Plan(body, inputs, arguments, results, rest.pop("schedule", schedule()), **rest)


def spec_of(tensor: torch.Tensor, parts: int = 1, name: str = "x") -> ArgumentSpec:
    """What a tensor must be like to be this argument."""
    return ArgumentSpec(name, tuple(tensor.shape), tensor.dtype, parts)
