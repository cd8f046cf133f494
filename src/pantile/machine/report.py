"""One document with everything a page needs to show: `report.json`, version 1.

    Estimate  ──►  document(…)  ──►  dict of plain data  ──►  <directory>/training/report.json
                                                             <directory>/training/trace.json

docs/report-data.md describes every field. Numbers are *modelled* unless they lie below `host`,
which is measured on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pantile.machine.advice import largest_holders
from pantile.machine.estimate import Estimate
from pantile.machine.memory import tile_map, weights_of
from pantile.machine.records import OpRecord
from pantile.machine.targets import assumptions, pod
from pantile.machine.timing import time_of
from pantile.machine.units import Unit, lifetimes, liveness, regenerable

VERSION = 1
_LARGEST_TENSORS = 2000


def document(
    estimate: Estimate, *, name: str, kind: str, created: str, host: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole report as plain data."""
    return {
        "version": VERSION,
        "name": name,
        "kind": kind,
        "created": created,
        "target": _target(estimate),
        "configuration": _configuration(estimate),
        "calibration": {
            "factors": asdict(estimate.settings.calibration),
            "note": "cycles are the formula's times the factor of the op's class",
        },
        "summary": _summary(estimate),
        "stages": [_stage(estimate, index) for index in range(len(estimate.stages))],
        "changes": [{**asdict(change), "enough": change.enough} for change in estimate.changes],
        "liveness": _liveness(estimate),
        "ops": [_op(estimate, op) for op in estimate.record.ops],
        "tensors": _tensors(estimate),
        "scaling": _scaling(estimate),
        "host": dict(host),
    }


def _target(estimate: Estimate) -> dict[str, Any]:
    system = estimate.configuration.system
    constants = [
        {"name": name, "value": value, "source": fact.source, "assumed": fact.assumed}
        for machine in (system.chip, system)
        for name, value, fact in assumptions(machine)
    ]
    return {
        "system": system.name,
        "chip": system.chip.name,
        "architecture": system.chip.architecture,
        "tiles_per_ipu": system.chip.tiles,
        "ipus": system.ipus,
        "clock_hz": system.chip.clock_hz,
        "memory_bytes_per_tile": system.chip.memory_bytes_per_tile,
        "constants": constants,
    }


def _configuration(estimate: Estimate) -> dict[str, Any]:
    chosen = estimate.configuration
    return {
        "training": chosen.training,
        "micro_batch": chosen.micro_batch,
        "gradient_accumulation": chosen.accumulation,
        "replicas": chosen.replicas,
        "ipus_per_replica": len(estimate.stages),
        "recompute": chosen.recompute,
        "optimizer": chosen.optimizer.name,
        "optimizer_cost": {
            "bytes_per_weight": chosen.optimizer.bytes_per_weight,
            "cycles_per_weight": chosen.optimizer.cycles(chosen.system.chip, 1, 0),
            "cycles_per_tensor": chosen.optimizer.cycles(chosen.system.chip, 0, 1),
        },
        "accumulator_bytes": chosen.accumulator_bytes,
        "overlapped_io": chosen.overlapped_io,
        "sharded_optimizer_state": chosen.sharded_state,
        "optimizer_state_off_chip": chosen.state_off_chip,
        "available_memory_proportion": list(estimate.settings.proportions),
        "partials": estimate.settings.partials,
    }


def _summary(estimate: Estimate) -> dict[str, Any]:
    timing, chip = estimate.timing, estimate.settings.chip
    low, high = estimate.band
    flops = sum(cost.flops for cost in estimate.costs)
    ipus = len(estimate.stages)
    busy = max((stage.micro_batch for stage in timing.stages), default=0.0)
    return {
        "verdict": estimate.verdict,
        "fullest_tile": max(memory.fraction(chip) for memory in estimate.memory),
        "samples_per_second": timing.samples_per_second,
        "samples_per_second_low": low,
        "samples_per_second_high": high,
        "seconds_per_update": timing.seconds,
        "bubble": timing.bubble,
        "balance": timing.balance,
        "flops_per_micro_batch": flops,
        "utilisation": flops / (busy * ipus * chip.peak_flops()) if busy else 0.0,
        "ops": len(estimate.record.ops),
        "hints": sorted({cost.note for cost in estimate.costs if cost.note}),
    }


def _stage(estimate: Estimate, index: int) -> dict[str, Any]:
    time, memory = estimate.timing.stages[index], estimate.memory[index]
    units, chip = estimate.stages[index], estimate.settings.chip
    sizes = [p.bytes for p in weights_of(units)]
    sizes += sizes if memory.accumulators else []
    even = (memory.total - sum(sizes)) // chip.tiles
    return {
        "ipu": index,
        "seconds": {**asdict(time), "micro_batch": time.micro_batch},
        "memory": {
            **memory.parts(),
            "always_live": memory.always_live,
            "not_always_live": memory.not_always_live,
            "total": memory.total,
            "capacity": chip.memory_bytes,
            "fullest_tile": memory.fraction(chip),
        },
        "largest": largest_holders(memory, units),
        "tiles": [int(b) for b in tile_map(sizes, chip.tiles, even=int(even))],
        "units": [_unit(unit) for unit in units],
    }


def _unit(unit: Unit) -> dict[str, Any]:
    return {
        "name": unit.name,
        "group": unit.group,
        "source": unit.source,
        "forward_cycles": unit.forward,
        "backward_cycles": unit.backward,
        "accumulate_cycles": unit.accumulate,
        "weights": sum(p.bytes for p in unit.parameters),
        "buffers": unit.buffer_bytes,
        "inputs": unit.input_bytes,
        "saved": unit.saved_bytes,
        "border": unit.border_bytes,
        "peak": unit.peak_bytes,
        "temporary": unit.temporary_bytes,
        "parameters": [asdict(parameter) for parameter in unit.parameters],
    }


def _liveness(estimate: Estimate) -> list[dict[str, Any]]:
    """For each IPU, the ops in order with the bytes alive after them."""
    free = regenerable(estimate.record)
    found = []
    for index, memory in enumerate(estimate.memory):
        used = sorted({estimate.ipu(unit.stage) for unit in estimate.units})
        ipu = used[index] if used else 0
        ops = [op for op in estimate.record.ops if estimate.ipu(op.stage) == ipu]
        steps = liveness(estimate.record, ops, free)
        temporary = [
            estimate.costs[op].temporary_bytes * estimate.settings.chip.tiles for op, _ in steps
        ]
        found.append(
            {
                "ipu": index,
                "always_live": memory.always_live,
                "ops": [op for op, _ in steps],
                "bytes": [alive for _, alive in steps],
                "temporary": temporary,
                "lifetimes": [
                    [root, first, last, estimate.record.tensors[root].bytes]
                    for root, (first, last) in lifetimes(estimate.record, ops, free).items()
                ],
            }
        )
    return found


def _op(estimate: Estimate, op: OpRecord) -> dict[str, Any]:
    cost, record = estimate.costs[op.id], estimate.record
    peak = estimate.settings.chip.peak_flops() / estimate.settings.chip.clock_hz
    return {
        "id": op.id,
        "op": op.op,
        "kind": cost.kind,
        "phase": op.phase,
        "ipu": estimate.ipu(op.stage),
        "stage": op.stage,
        "module": op.module,
        "source": op.source,
        "inputs": [f"{t.dtype}{list(t.shape)}" for t in record.operands(op)],
        "outputs": [f"{t.dtype}{list(t.shape)}" for t in record.results(op)],
        "tensors": list(op.outputs),
        "cycles": cost.cycles,
        "compute": cost.compute,
        "exchange": cost.exchange,
        "sync": cost.sync,
        "factor": cost.factor,
        "steps": cost.steps,
        "flops": cost.flops,
        "utilisation": cost.flops / (cost.cycles * peak) if cost.cycles else 0.0,
        "temporary_bytes_per_tile": cost.temporary_bytes,
        "grid": cost.grid,
        "note": cost.note,
    }


def _tensors(estimate: Estimate) -> list[dict[str, Any]]:
    """Tensors with memory of their own, the largest first."""
    maker = {t: op for op in estimate.record.ops for t in op.outputs}
    own = [t for t in estimate.record.tensors if t.of == t.id]
    own.sort(key=lambda t: -t.bytes)
    return [
        {
            "id": t.id,
            "name": t.name,
            "shape": list(t.shape),
            "dtype": t.dtype,
            "bytes": t.bytes,
            "kind": t.kind,
            "op": maker[t.id].id if t.id in maker else None,
            "module": maker[t.id].module if t.id in maker else "",
            "source": maker[t.id].source if t.id in maker else "",
        }
        for t in own[:_LARGEST_TENSORS]
    ]


def _scaling(estimate: Estimate) -> list[dict[str, Any]]:
    """Throughput with more and more replicas, the batch growing with them."""
    ipus, chosen = len(estimate.stages), estimate.configuration
    found = []
    speed = estimate.timing.samples_per_second or 1.0
    low, high = (value / speed for value in estimate.band)
    for exponent in range(9):
        replicas = 2**exponent
        needed = 1 << (ipus * replicas - 1).bit_length()
        if needed > 256:
            break
        name = pod(chosen.system.chip, needed).name
        more = replace(
            chosen, replicas=replicas, system=replace(chosen.system, name=name, ipus=needed)
        )
        timing = time_of(estimate.stages, more)
        slowest = max(timing.stages, key=lambda stage: stage.all_reduce)
        found.append(
            {
                "replicas": replicas,
                "ipus": ipus * replicas,
                "samples_per_second": timing.samples_per_second,
                "low": timing.samples_per_second * low,
                "high": timing.samples_per_second * high,
                "all_reduce_seconds": slowest.all_reduce,
                "update_seconds": max(stage.update for stage in timing.stages),
                "seconds_per_update": timing.seconds,
            }
        )
    return found
