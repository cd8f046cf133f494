"""Two threads on two cores, one of which somebody else takes: does a step collapse?

    python -m benchmarks crowd                      W1b and W4
    python -m benchmarks crowd --workloads W3

The process binds itself to two cores. Steps are timed by the wall clock in turns: cores free, a
process that never rests on one of them, cores free, … With half of a core gone for good a step may
take up to 4/3 of its time if its work is shared out again, and twice its time if threads wait for
each other. It also shows the CPU time that the process uses in a second in which nothing runs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from benchmarks import printed
from benchmarks.peers import load
from benchmarks.peers.peer import Engine, Settings
from benchmarks.workloads import Workload

_ROUNDS = 5
_SECONDS = 1.0
_PEERS = ("eager-fused", "pantile")


@dataclass
class Steps:
    """Wall seconds of single calls."""

    free: list[float] = field(default_factory=list)
    crowded: list[float] = field(default_factory=list)
    idle: float = 0.0
    """CPU seconds in a second without a step."""

    @property
    def slowdown(self) -> float:
        """Median with a neighbour / median without."""
        return statistics.median(self.crowded) / statistics.median(self.free)


def show(names: Iterable[str]) -> None:
    """Measure workloads and print a line for each engine."""
    with _two_cores() as cores:
        torch.set_num_threads(2)
        os.environ["PANTILE_TUNE"] = "0"  # both threads, whatever is faster here and now
        printed.show("crowd", names, partial(measured, cores=cores), table)


def measured(
    workload: Workload, cores: tuple[int, int], seconds: float = _SECONDS
) -> dict[str, Steps]:
    """Every engine with both cores free, and with one of them taken."""
    peers = load(("eager", "pantile"), Settings())
    engines = {peer.name: peer.training(workload) for peer in peers if peer.name in _PEERS}
    found = {name: Steps() for name in engines}
    for engine in engines.values():
        engine.run(3)
    for _ in range(_ROUNDS):
        for name, engine in engines.items():
            found[name].free += _calls(engine, seconds)
            with _neighbour(cores[1]):
                found[name].crowded += _calls(engine, seconds)
    for name, engine in engines.items():
        engine.wait(engine.run(1))
        before = time.process_time()
        time.sleep(1.0)
        found[name].idle = time.process_time() - before
        engine.close()
    return found


def _calls(engine: Engine, seconds: float) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        engine.wait(engine.run(1))
        taken.append(time.perf_counter() - begin)
    return taken


@contextmanager
def _two_cores() -> Iterator[tuple[int, int]]:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        raise SystemExit("benchmarks crowd needs two cores; this process may use one")
    first, second = sorted(allowed)[:2]
    os.sched_setaffinity(0, {first, second})
    try:
        yield first, second
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def _neighbour(core: int) -> Iterator[None]:
    """A process that is never done, bound to a core."""
    text = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert busy.stdout is not None
    busy.stdout.readline()
    try:
        yield
    finally:
        busy.kill()
        busy.communicate()


def table(name: str, found: dict[str, Steps]) -> str:
    """As text."""
    lines = [
        f"{name}, two threads on two cores    free    one taken   slower   CPU in an idle second"
    ]
    for peer, steps in found.items():
        free, crowded = (statistics.median(part) * 1e3 for part in (steps.free, steps.crowded))
        rest = f"{steps.slowdown:8.2f} {steps.idle * 1e3:12.1f} ms"
        lines.append(f"{peer:20} {free:14.2f} ms {crowded:9.2f} ms {rest}")
    return "\n".join(lines)
