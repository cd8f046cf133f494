"""What the command line chose, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import Task


@dataclass(frozen=True)
class Selection:
    """Workloads, peers, threads and how long."""

    workloads: tuple[str, ...] | None
    families: tuple[str, ...]
    threads: tuple[int, ...]
    seconds: float | None
    quick: bool
    engine: str
    paddle_python: str | None
    output: Path

    def pick(self, default: Sequence[str], allowed: Sequence[str]) -> list[str]:
        """The workloads of one kind of measurement: those named, or its own choice."""
        if self.workloads is None:
            return list(default)
        return [name for name in self.workloads if name in allowed]

    def task(self, kind: str, workload: str, threads: int, **detail: Any) -> Task:
        """A task with everything that is the same for all."""
        return Task(
            kind,
            workload,
            threads,
            self.families,
            quick=self.quick,
            seconds=self.seconds,
            engine=self.engine,
            paddle_python=self.paddle_python,
            detail=detail,
        )
