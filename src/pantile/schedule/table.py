"""The schedule itself: cycles from top to bottom, devices from left to right.

    cycle | ipu 0   | ipu 1
        0 | 0F0     |                 a cell holds what a device does in a cycle, in that order
        1 | 0F1     | 1F0 1B0
        2 | 0F2 0B0 | 1F1 1B1

Within a cycle devices work side by side and exchange nothing: what one computes, another can read
from the next cycle on. That is how IPUs run a pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pantile.errors import ScheduleError
from pantile.schedule.action import Action, Kind

Cell = tuple[Action, ...]


@dataclass(frozen=True)
class StageGraph:
    """The forward stages: the device of each, and the stages whose forward each one reads."""

    devices: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.devices or len(self.devices) != len(self.after):
            raise ScheduleError(
                f"{len(self.devices)} devices and {len(self.after)} lists of stages to read from",
                fix="give every stage a device and the stages it reads from; there is at least one",
            )
        for stage, sources in enumerate(self.after):
            late = [source for source in sources if not 0 <= source < stage]
            if late:
                raise ScheduleError(
                    f"stage {stage} reads from stage {late[0]}",
                    fix="number the stages so that each reads only from those before it",
                )

    @staticmethod
    def chain(devices: Sequence[int]) -> StageGraph:
        """Stages of which each reads from the one before."""
        after = tuple(() if i == 0 else (i - 1,) for i in range(len(devices)))
        return StageGraph(tuple(devices), after)

    def __len__(self) -> int:
        return len(self.devices)

    def readers(self, stage: int) -> tuple[int, ...]:
        """The stages that read from this one."""
        return tuple(s for s, sources in enumerate(self.after) if stage in sources)


@dataclass(frozen=True)
class Schedule:
    """What every device does in every cycle of one weight update (or of one inference call)."""

    name: str
    graph: StageGraph
    micro_batches: int
    cycles: tuple[tuple[Cell, ...], ...]

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices in use: one column of the table each."""
        return tuple(sorted(set(self.graph.devices)))

    @property
    def stages(self) -> int:
        """The number of forward stages."""
        return len(self.graph)

    @cached_property
    def trains(self) -> bool:
        """Whether there are backward actions."""
        return any(action.kind is Kind.BACKWARD for _, _, action in self.actions())

    @cached_property
    def recomputed(self) -> frozenset[int]:
        """The stages that compute activations again."""
        return frozenset(a.stage for _, _, a in self.actions() if a.kind is Kind.RECOMPUTE)

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """(cycle, device, action) in the order of the table."""
        for cycle, cells in enumerate(self.cycles):
            for device, cell in zip(self.devices, cells, strict=True):
                for action in cell:
                    yield cycle, device, action

    def needed_by(self, action: Action) -> list[Action]:
        """The actions whose results an action reads."""
        kind, stage, number = action.kind, action.stage, action.micro_batch
        if kind is Kind.FORWARD:
            return [Action(Kind.FORWARD, s, number) for s in self.graph.after[stage]]
        own = Action(Kind.FORWARD, stage, number)
        if kind is Kind.RECOMPUTE:
            return [own]
        if kind is Kind.UPDATE:
            return [Action(Kind.BACKWARD, stage, m) for m in range(self.micro_batches)]
        needed = [own, *(Action(Kind.BACKWARD, s, number) for s in self.graph.readers(stage))]
        if stage in self.recomputed:
            needed.append(Action(Kind.RECOMPUTE, stage, number))
        return needed

    def in_flight(self) -> tuple[int, ...]:
        """For each stage: of how many micro-batches it holds activations at most.

        A micro-batch counts from its forward on, until its backward is done.
        """
        now, peak = [0] * self.stages, [0] * self.stages
        for _, _, action in self.actions():
            stage = action.stage
            if action.kind is Kind.FORWARD:
                now[stage] += 1
                peak[stage] = max(peak[stage], now[stage])
            if action.kind is Kind.BACKWARD or (action.kind is Kind.FORWARD and not self.trains):
                now[stage] -= 1
        return tuple(peak)

    def as_json(self) -> dict[str, Any]:
        """The schedule as plain data."""
        return {
            "name": self.name,
            "devices": list(self.graph.devices),
            "after": [list(sources) for sources in self.graph.after],
            "micro_batches": self.micro_batches,
            "cycles": [[" ".join(map(str, cell)) for cell in cells] for cells in self.cycles],
        }

    def __str__(self) -> str:
        from pantile.schedule.text import print_schedule

        return print_schedule(self)


def tabulate(
    name: str,
    graph: StageGraph,
    micro_batches: int,
    rows: Collection[Mapping[int, Sequence[Action]]],
) -> Schedule:
    """A schedule from what each stage's device does in each cycle, given by device."""
    devices = sorted(set(graph.devices))
    cycles = tuple(tuple(tuple(row.get(d, ())) for d in devices) for row in rows)
    return Schedule(name, graph, micro_batches, cycles)
