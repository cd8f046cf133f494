"""Training: the time of one step (forward, loss, backward, update) of each peer."""

from __future__ import annotations

from typing import Any

from benchmarks.child import Task
from benchmarks.measure import interleave
from benchmarks.peers.peer import Purpose
from benchmarks.prepare import plan_of, prepare
from benchmarks.progress import Progress
from benchmarks.selection import Selection
from benchmarks.workloads import TRAINED, WORKLOADS, Workload


def tasks(selection: Selection) -> list[Task]:
    """A child for each workload and number of threads."""
    return [
        selection.task("train", workload, threads)
        for workload in selection.pick(TRAINED, list(WORKLOADS))
        for threads in selection.threads
    ]


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child: one record for each peer."""
    return compare(task, WORKLOADS[task.workload], "training")


def compare(task: Task, workload: Workload, purpose: Purpose) -> list[dict[str, Any]]:
    """Prepare, check and time all peers on one workload."""
    with Progress(task.title) as progress:
        ready, records = prepare(task, workload, purpose, progress.stage)
        engines = {each.peer.name: each.engine for each in ready}
        timings = interleave(engines, plan_of(task), progress.step) if engines else {}
    for each in ready:
        each.engine.close()
        records.append({**each.record, **timings[each.peer.name].record()})
    about = {"workload": workload.name, "rows": workload.rows, "threads": task.threads}
    return [{**about, **task.detail, **record} for record in records]
