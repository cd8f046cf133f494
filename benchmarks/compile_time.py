"""Compilation: from imports done to the first steps, in a new process, cold and warm.

    cold   all caches (Pantile's, Inductor's, JAX's) are empty folders
    warm   the same program again, in another process, with the caches the cold one left

Each peer has processes of its own. The second step is timed as well: Pantile runs the very first
device iteration on the reference engine. `compiling` is the part of `prepared` that writes C++,
compiles it and looks at its first run; the rest is the model, the optimizer (whose constructor
imports Dynamo, in eager PyTorch, too) and the capture.
"""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.child import Task
from benchmarks.peers.peer import Peer, Settings
from benchmarks.prepare import peers_of
from benchmarks.progress import Progress
from benchmarks.selection import Selection
from benchmarks.workloads import TRAINED, WORKLOADS

_PEERS = ("eager-fused", "compile-model", "compile-step", "jax", "pantile")


def chosen_peers(families: tuple[str, ...], names: tuple[str, ...]) -> list[Peer]:
    """The available ones of these peers that train."""
    from benchmarks import peers

    found = peers.load(families, Settings())
    return [peer for peer in found if peer.name in names and peer.available() is None]


def tasks(selection: Selection) -> list[Task]:
    """A cold and a warm child for each workload and peer, on all the threads asked for."""
    return [
        selection.task("compile", workload, max(selection.threads), peer=peer.name, start=start)
        for workload in selection.pick(("W1a", "W2", "W3", "W4"), TRAINED)
        for peer in chosen_peers(selection.families, _PEERS)
        for start in ("cold", "warm")
    ]


def environment(task: Task, scratch: Path) -> Mapping[str, str]:
    """Cache folders that only this peer and workload use."""
    return cache_folders(scratch / f"{task.kind}-{task.workload}-{task.detail['peer']}")


def cache_folders(folder: Path) -> dict[str, str]:
    """Point every cache into the folder."""
    variables = ("PANTILE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    for name in variables:
        (folder / name.lower()).mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **{name: str(folder / name.lower()) for name in variables},
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def measure(task: Task) -> list[dict[str, Any]]:
    """In the child: import, then take the time."""
    peer = next(peer for peer in peers_of(task) if peer.name == task.detail["peer"])
    for module in peer.needs:
        importlib.import_module(module)
    workload = WORKLOADS[task.workload]
    with Progress(task.title):
        begin = time.perf_counter()
        engine = peer.training(workload)
        marks = [time.perf_counter() - begin]
        for _ in range(2):
            engine.wait(engine.run(1))
            marks.append(time.perf_counter() - begin)
    compilers = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "workload": task.workload,
        "threads": task.threads,
        **task.detail,
        "family": peer.family,
        "seconds_to_prepared": marks[0],
        "seconds_to_first_step": marks[1],
        "seconds_to_second_step": marks[2],
        "cpu_seconds": time.process_time() + compilers.ru_utime + compilers.ru_stime,
        "notes": list(engine.notes),
    }
    if engine.compile_seconds is not None and task.detail["start"] == "cold":
        record["seconds_compiling"] = engine.compile_seconds()
    engine.close()
    return [record]
