"""The text form of a schedule: print it, parse it.

schedule pipelined of 2 micro-batches
stage 0 on ipu 0
stage 1 on ipu 1 after 0
cycle | ipu 0   | ipu 1
    0 | 0F0     |
    1 | 0F1     | 1F0 1B0
    2 | 0B0     | 1F1 1B1
    3 | 0B1     |
    4 | 0U      | 1U
"""

from __future__ import annotations

import re

from pantile.errors import ScheduleError
from pantile.schedule.action import Action
from pantile.schedule.table import Cell, Schedule, StageGraph

_HEAD = re.compile(r"schedule (\S+) of (\d+) micro-batch(?:es)?")
_STAGE = re.compile(r"stage (\d+) on ipu (\d+)(?: after ([\d ]+))?")


def print_schedule(schedule: Schedule) -> str:
    """The schedule as a table; `parse_schedule` reads it back."""
    count = schedule.micro_batches
    lines = [f"schedule {schedule.name} of {count} micro-batch{'' if count == 1 else 'es'}"]
    for stage, device in enumerate(schedule.graph.devices):
        sources = " ".join(map(str, schedule.graph.after[stage]))
        lines.append(f"stage {stage} on ipu {device}" + (f" after {sources}" if sources else ""))
    rows = [["cycle", *(f"ipu {device}" for device in schedule.devices)]]
    for cycle, cells in enumerate(schedule.cycles):
        rows.append([f"{cycle:5}", *(" ".join(map(str, cell)) for cell in cells)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(" | ".join(padded).rstrip())
    return "".join(f"{line}\n" for line in lines)


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text form; it is read, not validated."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise _unreadable(lines[0] if lines else "", "schedule pipelined of 8 micro-batches")
    stages = [line for line in lines[1:] if line.startswith("stage ")]
    graph = _parse_stages(stages)
    table = lines[1 + len(stages) :]
    columns = len(set(graph.devices))
    if not table or not table[0].startswith("cycle"):
        raise _unreadable(table[0] if table else "", "cycle | ipu 0 | ipu 1")
    cycles = tuple(_parse_row(i, row, columns) for i, row in enumerate(table[1:]))
    return Schedule(head[1], graph, int(head[2]), cycles)


def _parse_stages(lines: list[str]) -> StageGraph:
    devices, after = [], []
    for number, line in enumerate(lines):
        found = _STAGE.fullmatch(line)
        if found is None or int(found[1]) != number:
            raise _unreadable(line, f"stage {number} on ipu 0")
        devices.append(int(found[2]))
        after.append(tuple(map(int, (found[3] or "").split())))
    return StageGraph(tuple(devices), tuple(after))


def _parse_row(number: int, row: str, columns: int) -> tuple[Cell, ...]:
    first, *cells = row.split("|")
    if first.strip() != str(number) or len(cells) > columns:
        raise _unreadable(row, f"{number} | … with {columns} columns")
    cells += [""] * (columns - len(cells))
    return tuple(tuple(map(Action.parse, cell.split())) for cell in cells)


def _unreadable(line: str, example: str) -> ScheduleError:
    return ScheduleError(f"cannot read {line!r} as a schedule", fix=f"write {example!r}")
