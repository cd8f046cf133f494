"""A training step in bfloat16 beside the same in float32, ours and eager's.

    python -m benchmarks halves                     W3
    python -m benchmarks halves --workloads W1b

Model, optimizer state and inputs are bfloat16. One thread, CPU time, engines in turns. The ratios
are to eager in float32 with the fused optimizer: what a user gains who asks for bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from benchmarks import printed
from benchmarks.measure import Plan, Timing, interleave, summary
from benchmarks.peers import load
from benchmarks.peers.peer import Settings
from benchmarks.workloads import Workload

_PEERS = ("eager-fused", "pantile")
_AGAINST = "eager-fused, float32"
_PLAN = Plan(seconds=8.0)


def show(names: Iterable[str]) -> None:
    """Measure workloads and print a table for each."""
    torch.set_num_threads(1)
    printed.show("halves", names, measured, table)


def measured(workload: Workload, plan: Plan = _PLAN) -> dict[str, Timing]:
    """Every engine with both types."""
    peers = [peer for peer in load(("eager", "pantile"), Settings()) if peer.name in _PEERS]
    engines = {
        f"{peer.name}, {kind}": peer.training(replace(workload, dtype=getattr(torch, kind)))
        for kind in ("float32", "bfloat16")
        for peer in peers
    }
    found = interleave(engines, plan)
    for engine in engines.values():
        engine.close()
    return found


def table(name: str, found: dict[str, Timing]) -> str:
    """As text: shortest and median time, and how many times faster than eager in float32."""
    against = summary(found[_AGAINST].cpu)
    lines = [f"{name}, CPU time of a step, one thread   shortest     median   faster (medians)"]
    for engine, timing in found.items():
        times = summary(timing.cpu)
        ratios = [against[which] / times[which] for which in ("min", "median")]
        shown = f"{times['min'] * 1e3:9.2f} ms {times['median'] * 1e3:7.2f} ms"
        lines.append(f"{engine:32} {shown} {ratios[0]:8.2f} ({ratios[1]:.2f})")
    return "\n".join(lines)
