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
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import torch

from pantile.errors import CompilerMissing, ProgramError
from pantile.logging import logger
from pantile.lowering import self_check
from pantile.lowering.compiler import compiler_version
from pantile.lowering.expectation import Expectation
from pantile.lowering.kernels import build as kernels_build
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.load import NativeProgram, NativeRun
from pantile.lowering.prepare import Prepared, prepare
from pantile.lowering.tune import Choice, Samples, fastest, is_on, may_be_tried, with_threads
from pantile.program.garbage import free_left_graphs
from pantile.program.print_text import print_program
from pantile.program.program import Program
from pantile.store.cache import Entry

FORMAT = 2

LOWERING = "PANTILE_LOWERING"
"""The environment variable that allows only one lowering: `kernels`, `segments` or `inductor`."""

_CONVOLUTIONS = frozenset(
    {torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default}
)

_SOURCES = (".py", ".h", ".cpp")

Phase = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class StepPrograms:
    """What one step runs: the body for every micro-batch, the update after the last one."""

    body: Prepared
    update: Prepared | None

    @staticmethod
    def of(body: Program, update: Program | None, *, keeps: bool = False) -> StepPrograms:
        """Prepared for the compiler; ProgramError if one of them cannot be compiled."""
        prepared = None if update is None else prepare(update)
        return StepPrograms(prepare(body, keeps=keeps), prepared)

    @property
    def all(self) -> dict[str, Prepared]:
        """The programs by name."""
        named = {"body": self.body}
        return named if self.update is None else {**named, "update": self.update}

    def outline(self) -> StepPrograms:
        """What running them needs to know: their graphs take more memory than their code."""
        update = None if self.update is None else self.update.outline()
        return StepPrograms(self.body.outline(), update)

    def key(self, threads: int) -> str:
        """The name of the executable in the cache: equal for equal work on an equal machine."""
        texts = [print_program(p.program, tags=False) for p in self.all.values()]
        asked = [_lowering(), *kernels_build.target(), threads, self.body.keeps]
        parts = json.dumps([FORMAT, _surroundings(), asked, texts])
        return hashlib.sha256(parts.encode()).hexdigest()


@cache
def _surroundings() -> Mapping[str, str]:
    """What else machine code depends on."""
    own = b"".join(path.read_bytes() for path in _own_sources(files("pantile.lowering")))
    return {
        "pantile": version("pantile"),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu": _cpu_features(),
        "own code": hashlib.sha256(own).hexdigest(),
    }


def _own_sources(folder: Traversable) -> Iterator[Traversable]:
    """All files that code is made from or by, in a fixed order."""
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from _own_sources(item)
        elif item.name.endswith(_SOURCES):
            yield item


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
    programs: StepPrograms,
    key: str,
    name: str,
    threads: int,
    samples: Callable[[str], Sequence[torch.Tensor]],
    phase: Phase,
) -> Entry:
    """Compile all programs of a step; the decisions are timed on the samples and recorded."""
    begin = time.perf_counter()
    chosen = {
        part: _compiled(prepared, partial(samples, part), threads, phase)
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


def _compiled(prepared: Prepared, samples: Samples, threads: int, phase: Phase) -> Choice:
    """Our own kernels, with calls of single operators they lack; else Inductor's."""
    values = samples() if is_on() and may_be_tried(prepared) else None
    why, failed = f"{LOWERING}=inductor", ""
    if _lowering() != "inductor":
        expected = None
        if values is not None:
            expected = self_check.expectation(prepared, values)
        try:
            choice = _own_kernels(prepared, phase)
        except CompilerMissing:
            raise
        except Refused as error:
            why = str(error)
            logger.debug("%s is left to Inductor: %s", prepared.program.name, why)
            if _lowering() in ("kernels", "segments"):
                raise ProgramError(
                    f"our kernels have {why}", fix=f"unset {LOWERING}: Inductor may have code"
                ) from error
        except Exception as error:
            # A mistake of ours, or of the compiler, must not end the run: Inductor may do better.
            why = failed = f"{type(error).__name__}: {error}"
        else:
            phase("tune")
            choice, wrong = _tried(choice, prepared, values, threads, expected, samples)
            if wrong is None:
                return choice
            why = failed = wrong
    layouts = (False, True) if values is not None and _has_conv(prepared) else (False,)
    choices = [_inductor(prepared, layout, why, phase) for layout in layouts]
    if failed:
        logger.warning("our kernels cannot be used, Inductor's are instead: %s", failed)
    phase("tune")
    return fastest(choices, prepared, values, threads)


def _tried(
    choice: Choice,
    prepared: Prepared,
    values: Sequence[torch.Tensor] | None,
    threads: int,
    expected: Expectation | None,
    samples: Samples,
) -> tuple[Choice, str | None]:
    """A program of our own kernels with the best number of threads, or what is wrong with it."""
    if values is None:
        return replace(choice, threads=threads), None
    run = NativeRun(NativeProgram(choice.code, choice.calls), len(prepared.program.outputs))
    found = self_check.examined(run, prepared, values, threads, expected, samples)
    if found.complaint is not None or found.seconds is None:
        return replace(choice, threads=threads), found.complaint
    return with_threads(choice, run, values, threads, found.seconds), None


def _own_kernels(prepared: Prepared, phase: Phase) -> Choice:
    # The generators are imported where code is generated: a program of the cache needs none.
    from pantile.lowering.segments.search import mixed

    phase("lowering")
    free_left_graphs()
    found = mixed(prepared.program, prepared.constant_inputs, _lowering())
    texts = found.texts()
    phase("C++ compile")
    cpu, tiles = kernels_build.target()
    how = {**found.facts(), "cpu": cpu, "tiles": tiles}
    return Choice(how, kernels_build.build(texts), found.calls())


def _inductor(prepared: Prepared, channels_last: bool, why: str, phase: Phase) -> Choice:
    from pantile.lowering.inductor.build import build
    from pantile.lowering.inductor.generate import Settings, generate

    phase("lowering")
    sources = generate(prepared.program, Settings(channels_last))
    phase("C++ compile")
    how = {"lowering": "inductor", "why": why, "channels_last": channels_last}
    return Choice(how, build(sources), sources.calls)


def _has_conv(prepared: Prepared) -> bool:
    return any(node.target in _CONVOLUTIONS for node in prepared.program.graph.nodes)


def _lowering() -> str:
    """Which lowerings may be used: `kernels`, `inductor`, or both."""
    return os.environ.get(LOWERING, "")


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
        return NativeStep(programs.outline(), entry, loaded["body"], loaded.get("update"))

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
