"""The file of results: JSON with every number measured, and what it was measured on.

    {"about": {...}, "train": [record, …], "infer": […], …}

A run adds to the file of the run before if machine, versions and engine are the same, so a table
can be filled in parts; a task measured again replaces its records.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.child import Task
from benchmarks.selection import Selection

KINDS = ("train", "infer", "compile", "overhead", "memory", "growth")
_PACKAGES = (
    "torch",
    "jax",
    "jaxlib",
    "lightning",
    "onnxruntime",
    "numpy",
)


def about(selection: Selection) -> dict[str, Any]:
    """Date, machine, versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), **_versions()},
        "engine": selection.engine,
        "quick": selection.quick,
        "seconds": selection.seconds,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in (*_PACKAGES, "pantile"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def read(file: Path) -> dict[str, Any] | None:
    """The results of a run before; None if there are none."""
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def begin(selection: Selection, file: Path) -> dict[str, Any]:
    """Results to add to: those in the file if they belong together, else new ones."""
    now = about(selection)
    known = read(file)
    same = ("machine", "versions", "engine", "quick")
    if known is not None and all(known["about"].get(name) == now[name] for name in same):
        return {**known, "about": now}
    return {"about": now, **{kind: [] for kind in KINDS}}


def add(results: dict[str, Any], task: Task, records: list[dict[str, Any]]) -> None:
    """Put in the records of a task, in place of those it had."""
    same = {"workload": task.workload, "threads": task.threads, **task.detail}
    kept = [
        record
        for record in results[task.kind]
        if any(record.get(name) != value for name, value in same.items())
    ]
    dated = [{**record, "date": results["about"]["date"]} for record in records]
    results[task.kind] = kept + dated


def write(results: dict[str, Any], file: Path) -> None:
    """Replace the file in one move, so that an interrupted run leaves a whole one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1), encoding="utf-8")
    new.replace(file)
