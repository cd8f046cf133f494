"""What this machine did for an executor, and when: the measured part of a report.

    compile          phases of each compilation
    calls            calls of the executor, if a report was asked for
    micro-batches    input, compute and output of each, within the calls
    programs         not a time, but what ran: who wrote the code of each program, and why

Only the first calls are kept: a report shows what a call consists of, not how long training took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from pantile.runtime.counters import StepTimes

_MOST_CALLS = 500
_MOST_SPANS = 5000
_PARTS = ("input", "compute", "output")


class HostTimeline:
    """The spans of one executor, in seconds since it was made."""

    def __init__(self) -> None:
        self._origin = time.perf_counter()
        self._spans: list[dict[str, Any]] = []
        self._programs: list[dict[str, Any]] = []
        self._calls = 0
        #: Set by a report: writes what is known now, and asks for the calls to be kept.
        self.publish: Callable[[], None] | None = None

    @property
    def records_calls(self) -> bool:
        """Are calls measured? A call that is takes the long way, a few microseconds more."""
        return self.publish is not None and self._calls < _MOST_CALLS

    def note(self, lane: str, name: str, begin: float, end: float) -> None:
        """Keep a span; times are those of time.perf_counter()."""
        start = begin - self._origin
        self._spans.append({"lane": lane, "name": name, "start": start, "seconds": end - begin})

    def note_program(self, part: str, facts: Mapping[str, Any]) -> None:
        """Keep who wrote the code of a program: its lowering, and what was decided or refused."""
        program = {"part": part, **facts}
        if program not in self._programs:
            self._programs.append(program)

    def programs(self) -> list[dict[str, Any]]:
        """All programs as plain data: part, lowering, and if known cpu, threads and why."""
        return list(self._programs)

    @contextmanager
    def call(self, times: StepTimes) -> Iterator[None]:
        """The scope of one call, whose micro-batches are in `times` afterwards."""
        begin = time.perf_counter()
        yield
        if not self.records_calls:  # asked now: the first call is the one that compiles
            return
        self.note("calls", f"call {self._calls}", begin, time.perf_counter())
        self._calls += 1
        room = (_MOST_SPANS - len(self._spans)) // len(_PARTS)
        for row in times.rows[: max(0, room)]:
            for part, (first, last) in zip(_PARTS, pairwise(row.times), strict=True):
                self.note("micro-batches", part, first, last)

    def spans(self) -> list[dict[str, Any]]:
        """All spans as plain data: lane, name, start, seconds."""
        return list(self._spans)
