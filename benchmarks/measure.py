"""Time engines against each other on a machine that is not quiet.

    round 1:  eager ×400 | jax ×900 | pantile ×2000
    round 2:  pantile ×2000 | eager ×400 | jax ×900            the order turns
    …

What disturbs one engine in a round disturbs its neighbours as well, so engines are compared within
rounds. A round of an engine lasts about 0.2 s. Two clocks run: the CPU time of the whole process
(what the engine costs, little touched by other processes) and wall time (what the user waits).
The engines share one process, one after the other, so the process's CPU time is the engine's.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.peer import Engine

_SETTLE_SECONDS = 0.005
"""Threads of the engine before (OpenMP, ONNX Runtime) spin this long at most before they sleep."""


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    seconds: float = 5.0
    """For each engine, on average."""
    round_seconds: float = 0.2
    rounds: int = 5
    """At least."""

    @staticmethod
    def quick() -> Plan:
        """Enough to see that everything runs."""
        return Plan(seconds=0.05, round_seconds=0.01, rounds=3)


@dataclass
class Timing:
    """Seconds per step of one engine, a number for each round."""

    calls: int
    steps: int
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "calls_per_round": self.calls,
            "steps_per_call": self.steps,
            "rounds": len(self.cpu),
            "cpu": {**summary(self.cpu), "rounds": self.cpu},
            "wall": {**summary(self.wall), "rounds": self.wall},
        }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Smallest value, quartiles and median."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return {"min": min(values), "q1": first, "median": middle, "q3": third}


def timed(engine: Engine, calls: int) -> tuple[float, float]:
    """CPU and wall seconds of that many calls, until their results are computed."""
    cpu, wall = engine.cpu_clock(), time.perf_counter()
    engine.wait(engine.run(calls))
    wall = time.perf_counter() - wall
    return engine.cpu_clock() - cpu, wall


def calls_for(engine: Engine, seconds: float) -> int:
    """How many calls last about that long; doubled until the clock is precise enough."""
    timed(engine, 3)  # first calls compile and load things
    calls = 1
    while True:
        taken = timed(engine, calls)[1]
        if taken >= seconds / 4:
            return max(1, round(calls * seconds / taken))
        calls *= 2


def interleave(
    engines: Mapping[str, Engine], plan: Plan, tick: Callable[[int, int], None] | None = None
) -> dict[str, Timing]:
    """Measure all engines in turn. `tick(round, rounds)` is called after each round."""
    gc.collect()
    gc.freeze()  # the imports of one peer are no garbage that another should look through
    timings = {
        name: Timing(calls_for(engine, plan.round_seconds), engine.steps)
        for name, engine in engines.items()
    }
    # The first round warms up; it also tells how long a round takes.
    begin = time.perf_counter()
    for name, engine in engines.items():
        timed(engine, timings[name].calls)
    turn = time.perf_counter() - begin
    rounds = max(plan.rounds, math.ceil(plan.seconds * len(engines) / turn))
    order = list(engines)
    for index in range(rounds):
        shift = index % len(order)
        for name in order[shift:] + order[:shift]:
            timing = timings[name]
            time.sleep(_SETTLE_SECONDS)
            cpu, wall = timed(engines[name], timing.calls)
            timing.cpu.append(cpu / timing.calls / timing.steps)
            timing.wall.append(wall / timing.calls / timing.steps)
        if tick is not None:
            tick(index + 1, rounds)
    gc.unfreeze()
    return timings
