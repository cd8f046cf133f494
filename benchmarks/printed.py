"""Measurements that are printed and not kept: one workload after the other, with its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.progress import Progress
from benchmarks.workloads import WORKLOADS, Workload


def show(
    kind: str,
    names: Iterable[str],
    measured: Callable[[Workload], Any],
    table: Callable[[str, Any], str],
) -> None:
    """Measure workloads and print a table for each."""
    for name in names:
        with Progress(f"{kind} {name}"):
            found = measured(WORKLOADS[name])
        print(table(name, found))
