"""How Pantile's times grow: with D, G and R, and with the size of the graph.

Device iterations (D), gradient accumulation (G) and replicas (R) go from 1 to 64; the time of one
micro-batch should stay flat. Chains of 10 to 100 layers take their first step on the reference
engine, where that is capture and passes and hardly anything else; ten times the layers should take
about ten times as long.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import poptorch
from benchmarks.child import Task
from benchmarks.measure import interleave, summary
from benchmarks.models import Chain, WithLoss
from benchmarks.prepare import plan_of
from benchmarks.progress import Progress
from benchmarks.selection import Selection
from benchmarks.workloads import WORKLOADS

_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_LAYERS = (10, 20, 50, 100)
_AXES = {"D": "iterations", "G": "accumulation", "R": "replicas"}


def tasks(selection: Selection) -> list[Task]:
    """A child for each axis; the graph has none of the workloads."""
    if "pantile" not in selection.families:
        return []
    axes = [
        selection.task("growth", workload, threads, axis=axis)
        for workload in selection.pick(("W2",), ("W2", "W1a"))
        for threads in selection.threads
        for axis in _AXES
    ]
    return [*axes, selection.task("growth", "chain", 1, axis="graph")]


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child: a record for each point."""
    points = _graph_points(task) if task.detail["axis"] == "graph" else _points(task)
    about = {"workload": task.workload, "threads": task.threads, **task.detail}
    return [{**about, "peer": "pantile", "family": "pantile", **point} for point in points]


def _points(task: Task) -> list[dict[str, Any]]:
    """Seconds per micro-batch for each count."""
    from benchmarks.peers.pantile import Shape, training_engine

    workload, axis = WORKLOADS[task.workload], _AXES[task.detail["axis"]]
    with Progress(task.title) as progress:
        engines = {}
        for count in _COUNTS[:3] if task.quick else _COUNTS:
            progress.stage(f"{task.detail['axis']} = {count}")
            shape = Shape(**{axis: count})
            engines[count] = training_engine(workload, task.engine, shape)
        timings = interleave(
            {str(count): engine for count, engine in engines.items()}, plan_of(task), progress.step
        )
    points = []
    for count, engine in engines.items():
        timing = timings[str(count)]
        share = engine.steps / count  # timings are per update; an update has G * R micro-batches
        clocks = {"cpu": timing.cpu, "wall": timing.wall}
        per_batch = {name: summary([v * share for v in clocks[name]]) for name in clocks}
        points.append({"count": count, **per_batch})
        engine.close()
    return points


def _graph_points(task: Task) -> list[dict[str, Any]]:
    repeats = 2 if task.quick else 5
    _capture_seconds(2)  # the first capture of a process also imports torch's tracing modules
    points = []
    with Progress(task.title):
        for layers in _LAYERS[:2] if task.quick else _LAYERS:
            pairs = [_capture_seconds(layers) for _ in range(repeats)]
            cpu, wall = ([pair[index] for pair in pairs] for index in (0, 1))
            points.append({"count": layers, "cpu": summary(cpu), "wall": summary(wall)})
    return points


def _capture_seconds(layers: int) -> tuple[float, float]:
    """CPU and wall seconds of capture and passes; the first call records the update."""
    model = WithLoss(Chain(layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, optimizer)
    batch = torch.randn(4, 16), torch.zeros(4, dtype=torch.long)
    cpu, wall = time.process_time(), time.perf_counter()
    executor(*batch)
    taken = time.process_time() - cpu, time.perf_counter() - wall
    executor.destroy()
    return taken
