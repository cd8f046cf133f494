"""Host time of a step beyond its arithmetic, found in two ways.

*Empty model*: W0 has every dimension at 1, so what its step takes is host time: dispatch, checks,
Python. All peers can be compared by it. *Intercept*: a call of D steps takes host + D · inside, so
a call with D = 1 and one with D = 64, measured in turns, tell the two apart.
"""

from __future__ import annotations

from typing import Any

from benchmarks.child import Task
from benchmarks.measure import interleave, summary
from benchmarks.prepare import plan_of
from benchmarks.progress import Progress
from benchmarks.selection import Selection
from benchmarks.train import compare
from benchmarks.workloads import WORKLOADS

_MANY = 64


def tasks(selection: Selection) -> list[Task]:
    """Both ways, on one thread."""
    names = selection.pick(("W2",), ("W2", "W1a"))
    intercepts = [selection.task("overhead", name, 1, way="intercept") for name in names]
    empty = [selection.task("overhead", "W0", 1, way="empty model")] if names else []
    return [*empty, *(intercepts if "pantile" in selection.families else [])]


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child."""
    workload = WORKLOADS[task.workload]
    if task.detail["way"] == "empty model":
        return compare(task, workload, "training")
    return [_intercept(task)]


def _intercept(task: Task) -> dict[str, Any]:
    from benchmarks.peers.pantile import Shape, training_engine

    workload = WORKLOADS[task.workload]
    with Progress(task.title) as progress:
        engines = {
            str(count): training_engine(workload, task.engine, Shape(count)) for count in (1, _MANY)
        }
        timings = interleave(engines, plan_of(task), progress.step)
    found = {}
    for clock in ("cpu", "wall"):
        one, many = (getattr(timings[str(count)], clock) for count in (1, _MANY))
        pairs = [_split(*pair) for pair in zip(one, many, strict=True)]
        found[clock] = {
            "host_seconds": _split(min(one), min(many)),
            "host_seconds_of_rounds": summary(pairs),
            "step_seconds": min(one) - _split(min(one), min(many)),
        }
    about = {"workload": task.workload, "threads": task.threads, **task.detail}
    return {**about, "peer": "pantile", "family": "pantile", **found}


def _split(one: float, many: float) -> float:
    """Host time of a call, from the times of a step at D = 1 and at D = 64."""
    return (one - many) * _MANY / (_MANY - 1)
