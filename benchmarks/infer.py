"""Inference (W6): the time of one forward pass, at batch 1 and at the training batch."""

from __future__ import annotations

from typing import Any

from benchmarks.child import Task
from benchmarks.selection import Selection
from benchmarks.train import compare
from benchmarks.workloads import INFERRED, WORKLOADS


def tasks(selection: Selection) -> list[Task]:
    """A child for each workload, batch size and number of threads."""
    return [
        selection.task("infer", workload, threads, rows=rows)
        for workload in selection.pick(INFERRED, INFERRED)
        for rows in (1, WORKLOADS[workload].rows)
        for threads in selection.threads
    ]


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child: one record for each peer."""
    return compare(task, WORKLOADS[task.workload].with_rows(task.detail["rows"]), "inference")
