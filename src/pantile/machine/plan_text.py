"""A plan as text: the lines to paste into a PopTorch script, a table to read, plain data."""

from __future__ import annotations

from typing import Any

from pantile.machine.memory import verdict_of
from pantile.machine.search import Plan


def annotations_of(plan: Plan, model: str = "model") -> str:
    """PopTorch code that runs `model` as planned."""
    chosen = plan.configuration
    lines = ["import poptorch", "", "options = poptorch.Options()"]
    if chosen.replicas > 1:
        lines.append(f"options.replicationFactor({chosen.replicas})")
    if chosen.training and chosen.accumulation > 1:
        lines.append(f"options.Training.gradientAccumulation({chosen.accumulation})")
    if chosen.recompute != "none":
        lines.append('options._Popart.set("autoRecomputation", 3)  # pipeline')
    if chosen.sharded_state or chosen.state_off_chip:
        settings = "poptorch.TensorLocationSettings()"
        settings += f".useOnChipStorage({not chosen.state_off_chip})"
        if chosen.sharded_state:
            settings += ".useReplicatedTensorSharding(True)"
        lines.append(f"options.TensorLocations.setOptimizerLocation({settings})")
    shares = ", ".join(f'"IPU{i}": {chosen.proportion:g}' for i in range(len(plan.stages)))
    lines.append(f"options.setAvailableMemoryProportion({{{shares}}})")
    lines += [
        f'poptorch.BeginBlock({_path(model, stage[0].name)}, "stage{index}", ipu_id={index})'
        for index, stage in enumerate(plan.stages)
        if index
    ]
    if chosen.recompute == "layer":
        lines += ["", "", "def checkpoint(module, inputs, result):"]
        lines += ["    return poptorch.recomputationCheckpoint(result)", "", ""]
        for container in _containers(plan):
            lines.append(f"for layer in {_path(model, container)}:")
            lines.append("    layer.register_forward_hook(checkpoint)")
    return "\n".join(lines)


def _containers(plan: Plan) -> list[str]:
    """The lists of layers whose outputs are kept."""
    groups = [unit.group for stage in plan.stages for unit in stage]
    paths = [group.rpartition(".")[0] for group in groups if group.rpartition(".")[2].isdigit()]
    return list(dict.fromkeys(path for path in paths if path))


def _path(model: str, name: str) -> str:
    """`encoder.layer.3` as Python: `model.encoder.layer[3]`."""
    text = model
    for part in name.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def table(plan: Plan) -> str:
    """Stages with their time and memory."""
    chosen, chip = plan.configuration, plan.configuration.system.chip
    unit = "ms" if plan.timing.seconds < 10 else "s"
    lines = [
        f"{chosen.system.name}: {len(plan.stages)} stages x {chosen.replicas} replicas, "
        f"micro-batch {chosen.micro_batch}, accumulation {chosen.accumulation}, "
        f"recomputation {chosen.recompute}",
        f"{plan.samples_per_second:,.0f} samples/s, {_time(plan.timing.seconds, unit)} an update, "
        f"bubble {plan.timing.bubble:.0%}, balance {plan.timing.balance:.0%}, "
        f"{verdict_of(plan.memory, chip)}: fullest tile {plan.fullest:.0%}",
        "",
        "stage  from                             to                               ms      full",
    ]
    for index, (stage, time, memory) in enumerate(
        zip(plan.stages, plan.timing.stages, plan.memory, strict=True)
    ):
        lines.append(
            f"{index:5}  {stage[0].name[:32]:32} {stage[-1].name[:32]:32} "
            f"{time.micro_batch * 1e3:7.3f} {memory.fraction(chip):5.0%}"
        )
    return "\n".join(lines)


def _time(seconds: float, unit: str) -> str:
    return f"{seconds * 1e3:,.1f} ms" if unit == "ms" else f"{seconds:,.2f} s"


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, for JSON."""
    chosen, chip = plan.configuration, plan.configuration.system.chip
    return {
        "system": chosen.system.name,
        "chip": chip.name,
        "stages": [
            {
                "first": stage[0].name,
                "last": stage[-1].name,
                "source": stage[0].source,
                "units": [unit.name for unit in stage],
                "milliseconds": time.micro_batch * 1e3,
                "memory_bytes": memory.parts(),
                "fullest_tile": memory.fraction(chip),
            }
            for stage, time, memory in zip(
                plan.stages, plan.timing.stages, plan.memory, strict=True
            )
        ],
        "replicas": chosen.replicas,
        "micro_batch": chosen.micro_batch,
        "gradient_accumulation": chosen.accumulation,
        "recompute": chosen.recompute,
        "available_memory_proportion": chosen.proportion,
        "sharded_optimizer_state": chosen.sharded_state,
        "optimizer_state_off_chip": chosen.state_off_chip,
        "samples_per_second": plan.samples_per_second,
        "seconds_per_update": plan.timing.seconds,
        "bubble": plan.timing.bubble,
        "balance": plan.timing.balance,
        "verdict": verdict_of(plan.memory, chip),
        "annotations": annotations_of(plan),
    }
