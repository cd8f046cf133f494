"""`IPUProfiler`: Lightning's simple profiler, with what each compiled program took.

    Trainer(accelerator="ipu", profiler=IPUProfiler())

    program                  inputs                    engine   calls   first, s   then, ms
    training_step (fused)    float32[8, 16], int64[8]  native      96      3.812      0.214

The first call records and compiles. Every profiler of Lightning shows the same runs as actions
`[IPU]record ...` and `[IPU]run ...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pantile.lightning.namespaces import Namespace

_TITLES = ("program", "inputs", "engine", "calls", "first, s", "then, ms")


@dataclass
class ProgramTime:
    """What the calls of one program took."""

    name: str
    inputs: str
    engine: str = "reference"
    calls: int = 0
    first: float = 0.0
    rest: float = 0.0

    def add(self, seconds: float) -> None:
        """One call more."""
        if self.calls:
            self.rest += seconds
        else:
            self.first = seconds
        self.calls += 1

    @property
    def mean(self) -> float:
        """Seconds of a call after the first."""
        return self.rest / (self.calls - 1) if self.calls > 1 else 0.0

    def row(self) -> tuple[str, ...]:
        """As texts."""
        times = (f"{self.calls}", f"{self.first:.3f}", f"{self.mean * 1e3:.3f}")
        return (self.name, self.inputs, self.engine, *times)


def table(times: Sequence[ProgramTime]) -> str:
    """One line for each program."""
    rows = [_TITLES, *(time.row() for time in times)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
    return "\n".join("  ".join(map(_padded, row, widths, range(len(row)))).rstrip() for row in rows)


def _padded(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column < 3 else text.rjust(width)


class IPUProfilerMembers:
    """The members of `IPUProfiler`, for either namespace."""

    _lightning_module: Any

    def summary(self) -> str:
        """The actions, then the programs."""
        text: str = super().summary()  # type: ignore[misc]
        module = self._lightning_module
        trainer = None if module is None else module._trainer
        times = getattr(getattr(trainer, "strategy", None), "program_times", [])
        return f"{text}\n{table(times)}\n" if times else text


@cache
def profiler_class(namespace: Namespace) -> Any:
    """`IPUProfiler` for one namespace."""
    base = namespace.find("profilers.simple:SimpleProfiler")
    return type("IPUProfiler", (IPUProfilerMembers, base), {"__module__": __name__})
