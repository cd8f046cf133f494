"""Peak memory of training steps, each peer in a process of its own.

`peak` is the largest resident size while steps run, after compilation is over: the kernel's
high-water mark is reset before them. `beyond_imports` is that minus what the process held when its
imports were done. `whole_process` also covers compilation. A peer with a cache runs twice and the
second process counts.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.child import Task
from benchmarks.compile_time import cache_folders, chosen_peers
from benchmarks.prepare import peers_of
from benchmarks.progress import Progress
from benchmarks.selection import Selection
from benchmarks.workloads import TRAINED, WORKLOADS

_STATUS = Path("/proc/self/status")
_PEERS = ("eager", "eager-fused", "eager-channels-last", "compile-step", "jax", "pantile")


def tasks(selection: Selection) -> list[Task]:
    """Children for each workload and peer; peers that compile come twice."""
    return [
        selection.task("memory", workload, max(selection.threads), peer=peer.name, start=start)
        for workload in selection.pick(("W3", "W4"), TRAINED)
        for peer in chosen_peers(selection.families, _PEERS)
        if peer.takes(WORKLOADS[workload], "training")
        for start in (("cold", "warm") if peer.compiles else ("warm",))
    ]


def environment(task: Task, scratch: Path) -> Mapping[str, str]:
    """Cache folders shared by the two processes."""
    return cache_folders(scratch / f"{task.kind}-{task.workload}-{task.detail['peer']}")


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child."""
    peer = next(peer for peer in peers_of(task) if peer.name == task.detail["peer"])
    for module in peer.needs:
        importlib.import_module(module)
    imported = _bytes("VmRSS")
    with Progress(task.title):
        engine = peer.training(WORKLOADS[task.workload])
        engine.wait(engine.run(3))
        whole = _bytes("VmHWM")
        reset = _reset_peak()
        engine.wait(engine.run(3))
        peak = _bytes("VmHWM")
    about = {"workload": task.workload, "threads": task.threads, **task.detail}
    record = {
        **about,
        "family": peer.family,
        "peak": peak,
        "beyond_imports": peak - imported,
        "whole_process": max(whole, peak),
        "notes": list(engine.notes),
    }
    if not reset:
        record["notes"].append("the high-water mark could not be reset: compilation is included")
    engine.close()
    return [record]


def _bytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no {field}")


def _reset_peak() -> bool:
    """Give unused memory back and start the high-water mark anew; False if not allowed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
