"""The native engine: the programs of a step as machine code, compiled once and kept.

StepPrograms   body (fused | gradients | inference) and, after accumulation, the update
   │ key       text of the programs, torch, compiler, CPU, threads
   ▼
Entry          what the executable cache keeps: one object per program, and what was decided
   │ load
   ▼
NativeStep     functions to call
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import torch

from pantile.lowering.inductor.build import build, compiler_version
from pantile.lowering.inductor.generate import Settings, generate
from pantile.lowering.inductor.load import NativeProgram
from pantile.lowering.inductor.prepare import Prepared, prepare
from pantile.lowering.tune import Choice, Samples, choose
from pantile.program.print_text import print_program
from pantile.program.program import Program
from pantile.store.cache import Entry

FORMAT = 1

_SOURCES = (".py", ".h", ".cpp")

Phase = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class StepPrograms:
    """What one step runs: the body for every micro-batch, the update after the last one."""

    body: Prepared
    update: Prepared | None

    @staticmethod
    def of(body: Program, update: Program | None) -> StepPrograms:
        """Prepared for the compiler; ProgramError if one of them cannot be compiled."""
        return StepPrograms(prepare(body), None if update is None else prepare(update))

    @property
    def all(self) -> dict[str, Prepared]:
        """The programs by name."""
        named = {"body": self.body}
        return named if self.update is None else {**named, "update": self.update}

    def key(self, threads: int) -> str:
        """The name of the executable in the cache: equal for equal work on an equal machine."""
        texts = [print_program(p.program, tags=False) for p in self.all.values()]
        parts = json.dumps([FORMAT, _surroundings(), threads, texts])
        return hashlib.sha256(parts.encode()).hexdigest()


@cache
def _surroundings() -> Mapping[str, str]:
    """What else machine code depends on."""
    folder = files("pantile.lowering.inductor")
    texts = sorted((item.name, item) for item in folder.iterdir() if item.is_file())
    own = b"".join(item.read_bytes() for name, item in texts if name.endswith(_SOURCES))
    return {
        "pantile": version("pantile"),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu": _cpu_features(),
        "own code": hashlib.sha256(own).hexdigest(),
    }


def _cpu_features() -> str:
    """The features and model of the CPU, as the kernel tells them."""
    wanted = ("flags", "model name", "Features")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = {line.strip() for line in lines if line.startswith(wanted)}
    except OSError:
        found = {platform.processor()}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def compile_step(
    programs: StepPrograms, key: str, name: str, threads: int, samples: Samples, phase: Phase
) -> Entry:
    """Compile all programs of a step; the decisions are timed on the samples and recorded."""
    begin = time.perf_counter()
    chosen = {
        part: choose(prepared, samples.get(part), threads, _compiler(prepared, phase), phase)
        for part, prepared in programs.all.items()
    }
    header = {
        "name": name,
        "compiler": compiler_version(),
        "seconds": round(time.perf_counter() - begin, 3),
        "surroundings": dict(_surroundings()),
        "programs": {part: choice.header() for part, choice in chosen.items()},
    }
    sections = {f"{part}.so": memoryview(choice.code) for part, choice in chosen.items()}
    return Entry(key, header, sections)


def _compiler(prepared: Prepared, phase: Phase) -> Callable[[Settings], Choice]:
    def compiled(settings: Settings) -> Choice:
        phase("lowering")
        sources = generate(prepared.program, settings)
        phase("C++ compile")
        return Choice(settings, build(sources), sources.calls)

    return compiled


@dataclass(frozen=True, eq=False)
class NativeStep:
    """A step's programs, loaded."""

    programs: StepPrograms
    entry: Entry
    body: NativeProgram
    update: NativeProgram | None

    @staticmethod
    def load(programs: StepPrograms, entry: Entry) -> NativeStep:
        """Load the objects of an entry."""
        loaded = {
            part: NativeProgram(entry.sections[f"{part}.so"], _header(entry, part)["calls"])
            for part in programs.all
        }
        return NativeStep(programs, entry, loaded["body"], loaded.get("update"))

    def threads(self, part: str) -> int:
        """With how many threads a program was found to be fastest."""
        return int(_header(self.entry, part)["threads"])

    def decisions(self) -> dict[str, Any]:
        """What was decided when the programs were compiled, and the times behind it."""
        return {
            part: {k: v for k, v in _header(self.entry, part).items() if k != "calls"}
            for part in self.programs.all
        }


def _header(entry: Entry, part: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = entry.header["programs"][part]
    return found
