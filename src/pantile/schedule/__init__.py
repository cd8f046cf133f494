"""Schedules as data: which stage works on which micro-batch, and when.

    generate   strategy  ──►  Schedule      pipelined, sharded, phased
    text       Schedule  ◄─►  a table       printed and parsed
    validate   Schedule  ──►  error | nothing
    simulate   Schedule, times of stages  ──►  makespan, bubble, activations in flight

Nothing here knows torch or a model: a schedule is about stages and micro-batches.
"""

from pantile.schedule.action import Action, Kind
from pantile.schedule.generate import phased, pipelined, sharded
from pantile.schedule.simulate import StageTimes, Timeline, simulate
from pantile.schedule.table import Schedule, StageGraph
from pantile.schedule.text import parse_schedule, print_schedule
from pantile.schedule.validate import validate

__all__ = [
    "Action",
    "Kind",
    "Schedule",
    "StageGraph",
    "StageTimes",
    "Timeline",
    "parse_schedule",
    "phased",
    "pipelined",
    "print_schedule",
    "sharded",
    "simulate",
    "validate",
]
