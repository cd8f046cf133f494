"""When the data of a step went in and out: the numbers behind `getPerfCounters()`.

    input ──► input_complete ──► output ──► output_complete          one row per micro-batch
       slice      compute            keep the results

All are measured on this host, in seconds since the executor was made. The latencies of PopTorch are
differences of columns: host to IPU, compute, IPU to host, and the whole way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Latency = tuple[float, float, float]
"""Shortest, longest, average, in seconds."""

COLUMNS = ("input", "input_complete", "output", "output_complete")


@dataclass(frozen=True)
class Row:
    """The times of one micro-batch of one replica; `returned` says if its results were kept."""

    times: tuple[float, float, float, float]
    returned: bool


class WholeRun(Protocol):
    """What ran the latest step at once, and knows about it."""

    #: How many tensors went in and out.
    tensors: tuple[int, int]

    def all_times(self) -> tuple[Any, Any]: ...


@dataclass
class StepTimes:
    """The rows of the latest step."""

    inputs: int = 0
    outputs: int = 0
    _rows: list[Row] = field(default_factory=list)
    _tables: list[tuple[Any, Any]] = field(default_factory=list)
    #: What ran the latest step at once. A step of a few microseconds has time for no other note:
    #: all else is asked when somebody wants to know.
    whole: WholeRun | None = None
    #: Calls so far, where `pantile monitor` can read them; None for an executor nobody can see.
    pulse: memoryview[int] | None = None
    _origin: float = field(default_factory=time.perf_counter)

    def begin(self, inputs: int, outputs: int) -> None:
        """A step with so many tensors in and out begins."""
        if self.pulse is not None:
            self.pulse[0] += 1
        self._begin(inputs, outputs)

    def _begin(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._rows, self._tables, self.whole = [], [], None

    @property
    def rows(self) -> list[Row]:
        """All micro-batches so far, in the order they ran."""
        if self.whole is not None:
            whole = self.whole
            self._begin(*whole.tensors)
            self._tables.append(whole.all_times())
        tables, self._tables = self._tables, []
        for times, returned in tables:
            for row, kept in zip(times.reshape(-1, 4).tolist(), returned.tolist(), strict=True):
                self._rows.append(Row(tuple(row), bool(kept)))
        return self._rows

    def add(self, times: tuple[float, float, float, float], *, returned: bool) -> None:
        """Note one micro-batch."""
        self.rows.append(Row(times, returned))

    def add_table(self, times: Any, returned: Any) -> None:
        """Note many micro-batches: arrays [..., 4] and [...], read when somebody asks."""
        self._tables.append((times, returned))

    def column(self, name: str) -> list[float]:
        """One kind of time: of all micro-batches going in, of the returned ones coming out."""
        index = COLUMNS.index(name)
        rows = self.rows if index < 2 else [row for row in self.rows if row.returned]
        return [row.times[index] - self._origin for row in rows]

    def counters(self) -> dict[str, list[list[float]]]:
        """The dict of `getPerfCounters()`: one list per tensor, none knows more than the others."""
        columns = [self.column(name) for name in COLUMNS]
        counts = (self.inputs, self.inputs, self.outputs, self.outputs)
        return {
            name: [list(column) for _ in range(count)]
            for name, column, count in zip(COLUMNS, columns, counts, strict=True)
        }

    def latency(self, begin: str, end: str) -> Latency:
        """From one kind of time to another."""
        return latency(self.column(begin), self.column(end))

    @property
    def elapsed(self) -> float:
        """Seconds from the first input to the last result."""
        return self.rows[-1].times[3] - self.rows[0].times[0] if self.rows else 0.0


def latency(begins: Sequence[float], ends: Sequence[float]) -> Latency:
    """Shortest, longest and average time between two kinds of ticks.

    Of more beginnings than ends, the earliest of each group counts.
    """
    if not ends or len(begins) < len(ends):
        return (0.0, 0.0, 0.0)
    group = len(begins) // len(ends)
    firsts = [min(begins[i * group : (i + 1) * group]) for i in range(len(ends))]
    spans = [end - begin for begin, end in zip(firsts, ends, strict=True)]
    return (min(spans), max(spans), sum(spans) / len(spans))
