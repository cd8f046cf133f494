"""Read reports the way scripts read them with Graphcore's `pva`: the names they use, and no more.

    report = pantile.pva.openReport("profiles/training")
    report.compilation.target.numIPUs
    report.compilation.tiles[0].memory.total.includingGaps
    for step in report.execution.steps: step.name, step.cycles

`openReport` takes a folder or a file of ours, or an old `profile.pop` (SQLite, read-only), of which
the memory of tiles and the cycles of steps are read.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pantile.errors import Error

_SQLITE = b"SQLite format 3\x00"


@dataclass(frozen=True)
class Target:
    """The machine of a report."""

    numIPUs: int
    numTiles: int
    tilesPerIpu: int
    numReplicas: int
    architecture: str
    bytesPerTile: int


@dataclass(frozen=True)
class Step:
    """One op as it runs."""

    name: str
    cycles: int
    ipu: int = 0
    layer: str = ""
    source: str = ""


@dataclass(frozen=True)
class Compilation:
    """What is known before a run: machine, tiles, programs, liveness."""

    target: Target
    tiles: list[SimpleNamespace]
    programs: list[Step] = field(default_factory=list)
    livenessProgramSteps: list[SimpleNamespace] = field(default_factory=list)
    alwaysLiveBytes: int = 0

    @property
    def graph(self) -> SimpleNamespace:
        """Counts of the graph."""
        return SimpleNamespace(numComputeSets=len(self.programs), numVars=0)


@dataclass(frozen=True)
class Execution:
    """The steps of one micro-batch, in order."""

    steps: list[Step]


@dataclass(frozen=True)
class Report:
    """A report; `data` is the document itself where it is one of ours."""

    compilation: Compilation
    execution: Execution
    poplarVersion: SimpleNamespace
    data: dict[str, Any] = field(default_factory=dict, repr=False)


def openReport(path: str | Path, debug: str | Path | None = None) -> Report:
    """Open a report; `debug` is accepted and not needed."""
    file = report_file(Path(path))
    with open(file, "rb") as opened:
        start = opened.read(len(_SQLITE))
    if start == _SQLITE:
        return _from_profile(file)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["version"] > 1:
            raise Error(
                f"{file} has version {data['version']}; this release reads version 1",
                fix="upgrade pantile",
            )
        return _from_document(data)
    except (ValueError, KeyError, TypeError) as error:
        raise Error(
            f"{file} is no report: {error}", fix="pass a folder written by enableProfiling(dir)"
        ) from None


def report_file(path: Path) -> Path:
    """The file that a folder's report is in, or the file itself."""
    candidates = [path] if path.is_file() else []
    if path.is_dir():
        names = ("report.json", "training/report.json", "inference/report.json", "profile.pop")
        candidates = [path / name for name in names if (path / name).is_file()]
    if not candidates:
        raise Error(
            f"there is no report in {path}", fix="run with options.enableProfiling(dir) first"
        )
    return candidates[0]


def _from_document(data: dict[str, Any]) -> Report:
    target, chosen = data["target"], data["configuration"]
    steps = [
        Step(op["op"], round(op["cycles"]), op["ipu"], op["module"], op["source"])
        for op in data["ops"]
    ]
    tiles = [_tile(nbytes) for stage in data["stages"] for nbytes in stage["tiles"]]
    lives = [
        SimpleNamespace(
            program=op, notAlwaysLiveMemory=SimpleNamespace(bytes=alive), ipu=row["ipu"]
        )
        for row in data["liveness"]
        for op, alive in zip(row["ops"], row["bytes"], strict=True)
    ]
    ipus = chosen["ipus_per_replica"]
    compilation = Compilation(
        Target(
            ipus * chosen["replicas"],
            ipus * target["tiles_per_ipu"],
            target["tiles_per_ipu"],
            chosen["replicas"],
            target["architecture"],
            target["memory_bytes_per_tile"],
        ),
        tiles,
        steps,
        lives,
        sum(row["always_live"] for row in data["liveness"]),
    )
    return Report(compilation, Execution(steps), SimpleNamespace(string="modelled"), data)


def _tile(nbytes: int) -> SimpleNamespace:
    total = SimpleNamespace(includingGaps=nbytes, excludingGaps=nbytes)
    return SimpleNamespace(memory=SimpleNamespace(total=total))


def _from_profile(file: Path) -> Report:
    """An SDK's own profile. Tables differ between releases: what is missing stays empty."""
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        sizes = _rows(connection, tables, "memory_by_tile", ("total",))
        tiles = [_tile(int(total)) for (total,) in sizes]
        named = _rows(connection, tables, "programs", ("name",))
        cycles = _rows(connection, tables, "steps_by_ipu", ("cycles",))
    except sqlite3.DatabaseError as error:
        raise Error(f"{file} cannot be read: {error}", fix="copy the file again") from None
    finally:
        connection.close()
    steps = [
        Step(str(named[i][0]) if i < len(named) else f"step {i}", int(count or 0))
        for i, (count,) in enumerate(cycles)
    ]
    target = Target(1, len(tiles), len(tiles), 1, "unknown", 0)
    programs = [Step(str(name), 0) for (name,) in named]
    version = SimpleNamespace(string="imported")
    return Report(Compilation(target, tiles, programs), Execution(steps), version)


def _rows(
    connection: sqlite3.Connection, tables: set[str], table: str, columns: tuple[str, ...]
) -> list[tuple[Any, ...]]:
    if table not in tables:
        return []
    known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    if not set(columns) <= known:
        return []
    return list(connection.execute(f"SELECT {', '.join(columns)} FROM {table}"))
