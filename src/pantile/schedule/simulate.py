"""How long a schedule takes, given how long each stage takes.

    lockstep   a cycle lasts as long as its slowest device, as on IPUs, which wait for each other
    free       an action begins when its device is free and its inputs are there, as on threads

For equal stages with times f and b, G micro-batches and F stages the pipeline takes
(G + F - 1) · (f + b), and idles for (F - 1) / (G + F - 1) of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pantile.errors import ScheduleError
from pantile.schedule.action import Action, Kind
from pantile.schedule.table import Schedule


@dataclass(frozen=True)
class StageTimes:
    """How long one stage takes for one micro-batch, and for its update, in any unit."""

    forward: float
    backward: float = 0.0
    recompute: float = 0.0
    update: float = 0.0

    def of(self, kind: Kind) -> float:
        """The time of one kind of action."""
        return {
            Kind.FORWARD: self.forward,
            Kind.RECOMPUTE: self.recompute,
            Kind.BACKWARD: self.backward,
            Kind.UPDATE: self.update,
        }[kind]


@dataclass(frozen=True)
class Span:
    """An action, on which device, from when to when."""

    action: Action
    device: int
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What a simulation gives."""

    spans: tuple[Span, ...]
    makespan: float
    busy: dict[int, float]
    in_flight: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """The share of the devices' time in which they have nothing to do."""
        available = self.makespan * len(self.busy)
        return 1.0 - sum(self.busy.values()) / available if available else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data, without the spans."""
        return {
            "makespan": self.makespan,
            "bubble": self.bubble,
            "busy": {str(device): time for device, time in self.busy.items()},
            "in_flight": list(self.in_flight),
        }


def simulate(schedule: Schedule, times: Sequence[StageTimes], *, lockstep: bool = True) -> Timeline:
    """Execute a valid schedule on paper."""
    if len(times) != schedule.stages:
        raise ScheduleError(
            f"times of {len(times)} stages for a schedule of {schedule.stages}",
            fix="give the times of every stage",
        )
    spans: list[Span] = []
    free = dict.fromkeys(schedule.devices, 0.0)
    ended: dict[Action, float] = {}
    cycle, cycle_begin = 0, 0.0
    for at, device, action in schedule.actions():
        if at != cycle:
            cycle, cycle_begin = at, max(free.values())
        waits = [ended[a] for a in schedule.needed_by(action)]
        begin = max([free[device], *waits, cycle_begin if lockstep else 0.0])
        end = begin + times[action.stage].of(action.kind)
        spans.append(Span(action, device, begin, end))
        free[device] = ended[action] = end
    busy = dict.fromkeys(schedule.devices, 0.0)
    for span in spans:
        busy[span.device] += span.end - span.begin
    return Timeline(tuple(spans), max(free.values()), busy, schedule.in_flight())
