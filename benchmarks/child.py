"""One measurement in a process of its own, on as many cores as it has threads.

    parent                                       child
    run(Task("train", "W2", threads=1, …))  ──►  python -m benchmarks.child TASK RESULT
                                            ◄──  RESULT, a JSON file

The number of threads must be set before torch is imported, and JAX takes every core it may use: so
the child first binds itself to that many cores. Every result comes back, also "it crashed".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_LONGEST = 4 * 3600.0
"""Seconds. Cold compilation of all peers of ResNet-18 on one core takes many minutes."""
_MODULES = {
    "train": "benchmarks.train",
    "infer": "benchmarks.infer",
    "compile": "benchmarks.compile_time",
    "overhead": "benchmarks.overhead",
    "memory": "benchmarks.memory",
    "growth": "benchmarks.growth",
}


@dataclass(frozen=True)
class Task:
    """What a child measures; plain values, for JSON."""

    kind: str
    workload: str
    threads: int
    families: tuple[str, ...]
    quick: bool = False
    seconds: float | None = None
    engine: str = "native"
    paddle_python: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What only this kind of measurement knows."""

    @property
    def title(self) -> str:
        """For progress lines."""
        extra = "".join(f", {name} {value}" for name, value in self.detail.items())
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.kind} {self.workload}, {threads}{extra}"


def run(task: Task, environment: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Measure in a child; its records, or one that says how it failed."""
    threads = {name: str(task.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with tempfile.TemporaryDirectory(prefix="pantile-bench-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.child", json.dumps(asdict(task)), str(result)]
        variables = {**os.environ, **threads, "JAX_PLATFORMS": "cpu", **(environment or {})}
        done = subprocess.run(command, env=variables, timeout=_LONGEST, check=False)
        if done.returncode == 0 and result.exists():
            records: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))
            return records
    about = {"workload": task.workload, "threads": task.threads, **task.detail}
    return [{**about, "peer": "all", "error": f"the process ended with code {done.returncode}"}]


def bind(threads: int) -> None:
    """Stay on the first cores of those allowed."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(PermissionError):
        os.sched_setaffinity(0, cores[:threads])


def main() -> None:
    """The child: bind, import, measure, write."""
    given = json.loads(sys.argv[1])
    task = Task(**{**given, "families": tuple(given["families"])})
    bind(task.threads)
    import torch

    torch.set_num_threads(task.threads)
    records = importlib.import_module(_MODULES[task.kind]).measure(task)
    Path(sys.argv[2]).write_text(json.dumps(records), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of peers that do not end must not keep the process


if __name__ == "__main__":
    main()
