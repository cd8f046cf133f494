"""Ratios *peer time / our time* from the records of one child, where rounds were interleaved.

One thread: CPU time, and against JAX, whose bars are in wall time, both. More threads: wall time.
"Eager" is the fastest eager variant. Scans of 8 are compared with our 8 steps a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from benchmarks.measure import summary
from benchmarks.workloads import WORKLOADS

Record = dict[str, Any]

_ORDER = list(WORKLOADS)
OURS, OURS_EIGHT = "pantile", "pantile-d8"
COLUMNS = (
    "eager",
    "compile-model",
    "compile-step",
    "compile-frozen",
    "jax",
    "jax, CPU",
    "jax-scan8",
    "lightning",
    "paddle",
    "onnxruntime",
)


@dataclass(frozen=True)
class Ratio:
    """How many times as long a peer takes as we do."""

    column: str
    peer: str
    clock: str
    by_min: float
    by_median: float
    q1: float
    q3: float

    def text(self) -> str:
        """As printed in tables: of the minima / of the medians (quartiles of the rounds)."""
        spread = f"({self.q1:.2f}–{self.q3:.2f})"
        return f"{self.by_min:.2f} / {self.by_median:.2f} {spread}"


@dataclass(frozen=True)
class Row:
    """One workload on one number of threads."""

    kind: str
    workload: str
    rows: int
    threads: int
    records: dict[str, Record]
    ratios: dict[str, Ratio]

    @property
    def label(self) -> str:
        """For tables; inference names its batch."""
        return f"{self.workload}, batch {self.rows}" if self.kind == "infer" else self.workload

    def best_peer(self) -> Ratio | None:
        """The peer that comes closest to us."""
        return min(self.ratios.values(), key=lambda ratio: ratio.by_min, default=None)


def clock_for(column: str, threads: int) -> str:
    """Which clock a comparison uses."""
    return "cpu" if threads == 1 and column not in ("jax", "jax-scan8") else "wall"


def table(kind: str, records: Iterable[Record]) -> list[Row]:
    """One row for each group of records that were measured together."""

    def key(record: Record) -> tuple[Any, ...]:
        return record["threads"], _ORDER.index(record["workload"]), record.get("rows", 0)

    timed = sorted((record for record in records if "wall" in record), key=key)
    rows = []
    for (threads, place, count), group in groupby(timed, key):
        found = {record["peer"]: record for record in group}
        rows.append(Row(kind, _ORDER[place], count, threads, found, _ratios(found, threads)))
    return rows


def _ratios(found: dict[str, Record], threads: int) -> dict[str, Ratio]:
    ratios = {}
    for column in COLUMNS:
        ours = found.get(OURS_EIGHT if column == "jax-scan8" else OURS) or found.get(OURS)
        names = [name for name, record in found.items() if _belongs(record, column, threads)]
        if ours is None or not names:
            continue
        clock = clock_for(column, threads)
        fastest = min(names, key=partial(_least, found, clock))
        ratios[column] = _ratio(column, found[fastest], ours, clock)
    return ratios


def _least(found: dict[str, Record], clock: str, name: str) -> float:
    return float(found[name][clock]["min"])


def _belongs(record: Record, column: str, threads: int) -> bool:
    if column == "jax, CPU":
        return threads == 1 and bool(record["peer"] == "jax")
    if column == "eager":
        return bool(record["family"] == "eager")
    return bool(record["peer"] == column)


def _ratio(column: str, peer: Record, ours: Record, clock: str) -> Ratio:
    theirs, own = peer[clock], ours[clock]
    pairs = zip(theirs["rounds"], own["rounds"], strict=True)
    spread = summary([their / our for their, our in pairs])
    return Ratio(
        column,
        peer["peer"],
        clock,
        theirs["min"] / own["min"],
        theirs["median"] / own["median"],
        spread["q1"],
        spread["q3"],
    )


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns that any row fills."""
    return [column for column in COLUMNS if any(column in row.ratios for row in rows)]
