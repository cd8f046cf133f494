"""Whether a schedule can be executed, and does all there is to do.

complete     every forward and backward once, recomputation for all micro-batches or none
in place     a stage's actions on the stage's device
in order     each stage takes the micro-batches in their order, forward and backward
ready        what an action reads was computed in an earlier cycle, or before it in its cell
one update   of every stage, after all else, nothing behind it
capacity     no stage holds more micro-batches than it has room for
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pantile.errors import ScheduleError
from pantile.schedule.action import Action, Kind
from pantile.schedule.table import Schedule

Place = tuple[int, int, int]
"""Cycle, device, and number within the cell."""


def validate(schedule: Schedule, *, capacity: Sequence[int] | None = None) -> None:
    """Raise a ScheduleError that names the first wrong action."""
    places = _places(schedule)
    _check_complete(schedule, places)
    _check_devices(schedule)
    _check_order(schedule)
    for action, place in places.items():
        _check_ready(schedule, action, place, places)
    _check_update(schedule)
    if capacity is not None:
        _check_capacity(schedule, capacity)


def _places(schedule: Schedule) -> dict[Action, Place]:
    places: dict[Action, Place] = {}
    numbers: Counter[tuple[int, int]] = Counter()
    for cycle, device, action in schedule.actions():
        if action in places:
            raise _wrong(schedule, action, f"is in cycle {places[action][0]} and cycle {cycle}")
        places[action] = (cycle, device, numbers[cycle, device])
        numbers[cycle, device] += 1
    return places


def _check_complete(schedule: Schedule, places: dict[Action, Place]) -> None:
    stages, numbers = range(schedule.stages), range(schedule.micro_batches)
    wanted = {Action(Kind.FORWARD, s, m) for s in stages for m in numbers}
    wanted |= {Action(Kind.RECOMPUTE, s, m) for s in schedule.recomputed for m in numbers}
    if schedule.trains:
        wanted |= {Action(Kind.BACKWARD, s, m) for s in stages for m in numbers}
        wanted |= {Action(Kind.UPDATE, s) for s in stages}
    missing = sorted(map(str, wanted - places.keys()))
    if missing:
        raise ScheduleError(f"the {schedule.name} schedule lacks {', '.join(missing[:5])}")
    for action in places.keys() - wanted:
        raise _wrong(schedule, action, "is none of its actions")


def _check_devices(schedule: Schedule) -> None:
    for cycle, device, action in schedule.actions():
        own = schedule.graph.devices[action.stage]
        if device != own:
            raise _wrong(
                schedule, action, f"of device {own} is on device {device} in cycle {cycle}"
            )


def _check_order(schedule: Schedule) -> None:
    latest: dict[tuple[Kind, int], int] = {}
    for cycle, _, action in schedule.actions():
        if action.micro_batch is None:
            continue
        key = (action.kind, action.stage)
        if action.micro_batch < latest.get(key, -1):
            raise _wrong(
                schedule,
                action,
                f"in cycle {cycle} comes after that of micro-batch {latest[key]}",
            )
        latest[key] = action.micro_batch


def _check_ready(
    schedule: Schedule, action: Action, place: Place, places: dict[Action, Place]
) -> None:
    cycle, device, number = place
    for needed in schedule.needed_by(action):
        when, where, before = places[needed]
        same_cell = (when, where) == (cycle, device) and before < number
        if not same_cell and when >= cycle:
            raise _wrong(
                schedule, action, f"in cycle {cycle} reads what {needed} computes in cycle {when}"
            )


def _check_update(schedule: Schedule) -> None:
    cycles = [cycle for cycle, _, action in schedule.actions() if action.kind is Kind.UPDATE]
    for cycle, _, action in schedule.actions():
        if cycles and cycle >= min(cycles) and action.kind is not Kind.UPDATE:
            raise _wrong(
                schedule, action, f"in cycle {cycle} runs beside or after the update of the weights"
            )


def _check_capacity(schedule: Schedule, capacity: Sequence[int]) -> None:
    for stage, (held, room) in enumerate(zip(schedule.in_flight(), capacity, strict=True)):
        if held > room:
            raise ScheduleError(
                f"stage {stage} of the {schedule.name} schedule holds the activations of {held} "
                f"micro-batches; it has room for {room}",
                fix="recompute activations, use fewer stages, or ShardedExecution",
            )


def _wrong(schedule: Schedule, action: Action, what: str) -> ScheduleError:
    return ScheduleError(f"{action} of the {schedule.name} schedule {what}")
