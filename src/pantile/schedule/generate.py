"""Schedules of the execution strategies.

pipelined   2F - 1 places in a line: forward 0 … F-1, then backward F-2 … 0; the backward of the
            last stage shares its place with the forward. In cycle t, place p works on
            micro-batch t - p: fill, steady state, drain, and one update.

            cycle | ipu 0   | ipu 1   | ipu 2
                0 | 0F0     |         |              fill
                1 | 0F1     | 1F0     |
                2 | 0F2     | 1F1     | 2F0 2B0
                3 | 0F3     | 1F2 1B0 | 2F1 2B1
                4 | 0F4 0B0 | 1F3 1B1 | 2F2 2B2      steady state
                …

sharded     one micro-batch after the other through all stages
phased      the same, with the stages of a phase at the same time
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pantile.errors import ScheduleError
from pantile.schedule.action import Action, backward, forward, recompute, update
from pantile.schedule.table import Schedule, StageGraph, tabulate

Row = dict[int, list[Action]]


def pipelined(
    graph: StageGraph, micro_batches: int, *, training: bool, recomputed: Collection[int] = ()
) -> Schedule:
    """Stages work at the same time, each on another micro-batch."""
    _check(graph, micro_batches)
    last = len(graph) - 1
    places = 2 * last + 1 if training else last + 1
    rows: list[Row] = []
    for cycle in range(micro_batches + places - 1):
        row: Row = {}
        for place in range(places):
            number = cycle - place
            if 0 <= number < micro_batches:
                _work(row, graph, place, number, training=training, recomputed=recomputed)
        rows.append(row)
    return _finished("pipelined", graph, micro_batches, rows, training=training)


def _work(
    row: Row,
    graph: StageGraph,
    place: int,
    number: int,
    *,
    training: bool,
    recomputed: Collection[int],
) -> None:
    """What the pipeline does at one place with one micro-batch."""
    last = len(graph) - 1
    if place <= last:
        _put(row, graph, forward(place, number))
    if training and place >= last:
        _go_back(row, graph, 2 * last - place, number, recomputed)


def sharded(
    graph: StageGraph, micro_batches: int, *, training: bool, recomputed: Collection[int] = ()
) -> Schedule:
    """One stage works at a time."""
    phases = [[stage] for stage in range(len(graph))]
    return _one_by_one(
        "sharded", graph, phases, micro_batches, training=training, recomputed=recomputed
    )


def phased(
    graph: StageGraph,
    phases: Sequence[Sequence[int]],
    micro_batches: int,
    *,
    training: bool,
    recomputed: Collection[int] = (),
    serial: bool = True,
) -> Schedule:
    """One phase at a time; its stages at the same time, as far as they do not read each other.

    Serial phases share their devices, parallel ones alternate between two sets: which device a
    stage has is said by the graph.
    """
    if sorted(stage for phase in phases for stage in phase) != list(range(len(graph))):
        raise ScheduleError(
            f"phases {[list(phase) for phase in phases]} do not hold each of {len(graph)} stages "
            "once",
            fix="list every stage in one phase",
        )
    name = "serial-phased" if serial else "parallel-phased"
    steps = [step for phase in phases for step in _independent(graph, phase)]
    return _one_by_one(name, graph, steps, micro_batches, training=training, recomputed=recomputed)


def _independent(graph: StageGraph, phase: Sequence[int]) -> list[list[int]]:
    """The stages of a phase in groups that can run side by side, on devices of their own."""
    groups: list[list[int]] = []
    for stage in sorted(phase):
        latest = groups[-1] if groups else []
        reads = set(graph.after[stage]).intersection(latest)
        shares = graph.devices[stage] in {graph.devices[other] for other in latest}
        if not groups or reads or shares:
            groups.append([stage])
        else:
            latest.append(stage)
    return groups


def _one_by_one(
    name: str,
    graph: StageGraph,
    steps: Sequence[Sequence[int]],
    micro_batches: int,
    *,
    training: bool,
    recomputed: Collection[int],
) -> Schedule:
    _check(graph, micro_batches)
    rows: list[Row] = []
    for number in range(micro_batches):
        for step in steps:
            row: Row = {}
            for stage in step:
                _put(row, graph, forward(stage, number))
            rows.append(row)
        for index, step in enumerate(reversed(steps) if training else ()):
            # The last stage goes back at once, if it is alone: as in a pipeline.
            row = rows[-1] if index == 0 and len(step) == 1 else {}
            for stage in step:
                _go_back(row, graph, stage, number, recomputed)
            if row is not rows[-1]:
                rows.append(row)
    return _finished(name, graph, micro_batches, rows, training=training)


def _go_back(
    row: Row, graph: StageGraph, stage: int, number: int, recomputed: Collection[int]
) -> None:
    if stage in recomputed:
        _put(row, graph, recompute(stage, number))
    _put(row, graph, backward(stage, number))


def _put(row: Row, graph: StageGraph, action: Action) -> None:
    row.setdefault(graph.devices[action.stage], []).append(action)


def _finished(
    name: str, graph: StageGraph, micro_batches: int, rows: list[Row], *, training: bool
) -> Schedule:
    if training:
        last: Row = {}
        for stage in range(len(graph)):
            _put(last, graph, update(stage))
        rows.append(last)
    return tabulate(name, graph, micro_batches, rows)


def _check(graph: StageGraph, micro_batches: int) -> None:
    if micro_batches < 1:
        raise ScheduleError(
            f"a schedule of {len(graph)} stages for {micro_batches} micro-batches",
            fix="schedule at least one micro-batch",
        )
