"""The modelled timeline as a trace file, for Perfetto (ui.perfetto.dev) or chrome://tracing.

process   one IPU of a replica
thread    ops: what runs in one micro-batch, coloured by compute, exchange and sync
          pipeline: which micro-batch is forward or backward in which cycle
process   host: measured spans, if there are any
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pantile.machine.estimate import Estimate

_MOST_CYCLES = 64
"""Cycles of the pipeline that are drawn: filling, some steady ones, and the bubble are visible."""


def trace(estimate: Estimate, host: Mapping[str, Any]) -> dict[str, Any]:
    """A document in the Chrome trace event format; times are microseconds."""
    events = [*_names(estimate), *_ops(estimate), *_pipeline(estimate), *_host(estimate, host)]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _names(estimate: Estimate) -> Iterator[dict[str, Any]]:
    for ipu in range(len(estimate.stages)):
        yield _meta("process_name", ipu, 0, f"IPU {ipu} (modelled)")
        for thread, name in enumerate(("ops of one micro-batch", "phases", "pipeline")):
            yield _meta("thread_name", ipu, thread, name)


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _span(
    name: str, process: int, thread: int, start: float, seconds: float, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": args,
    }


def _ops(estimate: Estimate) -> Iterator[dict[str, Any]]:
    clock = estimate.settings.chip.clock_hz
    now = dict.fromkeys(range(len(estimate.stages)), 0.0)
    used = sorted({estimate.ipu(unit.stage) for unit in estimate.units})
    row_of = {ipu: row for row, ipu in enumerate(used)}
    for op in estimate.record.ops:
        cost = estimate.costs[op.id]
        row = row_of.get(estimate.ipu(op.stage), 0)
        if not cost.cycles:
            continue
        start, seconds = now[row], cost.cycles / clock
        details = {"module": op.module, "source": op.source, "phase": op.phase, "grid": cost.grid}
        yield _span(op.op, row, 0, start, seconds, cycles=round(cost.cycles), **details)
        for name, part in (
            ("sync", cost.sync),
            ("exchange", cost.exchange),
            ("compute", cost.compute),
        ):
            if part:
                yield _span(name, row, 1, start, part * cost.factor / clock)
                start += part * cost.factor / clock
        now[row] += seconds


def _pipeline(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """Micro-batch m is forward on IPU i in cycle m + i, and backward in cycle m + 2 P - 2 - i."""
    stages = estimate.timing.stages
    cycle = max(stage.micro_batch for stage in stages)
    last = len(stages) - 1
    for index, stage in enumerate(stages):
        for batch in range(min(estimate.configuration.accumulation, _MOST_CYCLES)):
            start = (batch + index) * cycle
            yield _span(f"forward {batch}", index, 2, start, stage.forward)
            if estimate.configuration.training:
                start = (batch + 2 * last - index) * cycle + stage.forward
                again = stage.recompute + stage.backward
                yield _span(f"backward {batch}", index, 2, start, again)


def _host(estimate: Estimate, host: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    process = len(estimate.stages)
    spans = host.get("spans", [])
    if spans:
        yield _meta("process_name", process, 0, "host (measured)")
    lanes = list(dict.fromkeys(span["lane"] for span in spans))
    for thread, lane in enumerate(lanes):
        yield _meta("thread_name", process, thread, lane)
    for span in spans:
        thread = lanes.index(span["lane"])
        yield _span(span["name"], process, thread, span["start"], span["seconds"])
