"""Ask the machine model from Python: does a model fit, how fast is it, where to cut it.

    best = plan(model, inputs, ipus=16, optimizer="adamw", batch=1024)
    print(best.samples_per_second, best.fits)
    print(annotations_of(best))

Nothing is run and nothing compiled: forward is captured on tensors without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from pantile.errors import InputMismatch
from pantile.machine.batches import for_any_batch
from pantile.machine.cost import CostSettings
from pantile.machine.estimate import Estimate
from pantile.machine.extract import records_of
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.plan_text import annotations_of, as_data, table
from pantile.machine.records import ProgramRecord
from pantile.machine.search import Plan, plans_for, ranked
from pantile.machine.targets import BOW, Chip, System, chip_named, pod, with_constants
from pantile.machine.timing import Configuration, Recompute
from pantile.machine.units import units_of
from pantile.options import Options
from pantile.runtime.placement import place_blocks, tag_stages

__all__ = ["Estimate", "Plan", "annotations_of", "as_data", "estimate", "plan", "plans", "table"]


def record(model: nn.Module, inputs: Sequence[Any], *, training: bool = True) -> ProgramRecord:
    """Capture a model for these arguments (one micro-batch) as plain records."""
    return _placed(model, inputs, training=training)[0]


def _placed(
    model: nn.Module, inputs: Sequence[Any], *, training: bool
) -> tuple[ProgramRecord, dict[int, int]]:
    """The records, and the IPU of each stage that the model's blocks name."""
    from pantile.capture.forward import Request, capture
    from pantile.capture.module_state import ModuleState
    from pantile.program.structure import flatten, leaf_names

    tensors, structure = flatten((tuple(inputs), {}))
    names = leaf_names(structure, "input")
    request = Request(
        model, model, ModuleState.of(model), structure, tensors, names, training=training
    )
    captured = capture(request)
    strategy = Options().execution_strategy
    placement = place_blocks(captured.blocks, captured.activations, strategy, strict=False)
    program = tag_stages(captured.program, placement, strict=False)
    return records_of(program), dict(enumerate(placement.devices))


def estimate(
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    chip: str | Chip = BOW,
    ipus: int = 1,
    training: bool = True,
    optimizer: str = "sgd",
    accumulation: int = 1,
    replicas: int = 1,
    recompute: Recompute = "none",
    proportion: float = 0.6,
    partials: str = "float16",
    constants: Mapping[str, float] | None = None,
) -> Estimate:
    """Time and memory of a model as its blocks place it, with other constants where given."""
    machine = _machine(chip, ipus, constants)
    program, devices = _placed(model, inputs, training=training)
    return Estimate(
        program,
        CostSettings(machine.chip, (proportion,), partials),
        Configuration(
            machine,
            micro_batch_of(inputs),
            accumulation,
            replicas,
            training,
            recompute,
            OptimizerModel(optimizer if training else "none"),
        ),
        devices,
    )


def _machine(chip: str | Chip, ipus: int, constants: Mapping[str, float] | None) -> System:
    system = pod(chip_named(chip) if isinstance(chip, str) else chip, ipus)
    return with_constants(system, constants or {})


def plan(model: nn.Module, inputs: Sequence[Any], **wishes: Any) -> Plan:
    """The fastest way that fits; if none does, the one that comes closest. See `plans`."""
    return plans(model, inputs, **wishes)[0]


def plans(
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    ipus: int,
    chip: str | Chip = BOW,
    batch: int | None = None,
    training: bool = True,
    optimizer: str = "sgd",
    micro_batches: Sequence[int] = (),
    proportions: Sequence[float] = (0.6, 0.3, 0.15),
    partials: str = "float16",
    constants: Mapping[str, float] | None = None,
    progress: bool = False,
) -> list[Plan]:
    """Every way to run a model on a pod of `ipus` IPUs, the best first.

    `inputs` are one micro-batch; `micro_batches` names other sizes to try (forward is then captured
    a second time, with twice the batch, to see which sizes grow with it). `batch` is the number of
    samples of a weight update; `constants` are values of the model to use in place of its own.
    """
    machine = _machine(chip, ipus, constants)
    trials = [CostSettings(machine.chip, (proportion,), partials) for proportion in proportions]
    given = micro_batch_of(inputs)
    sizes = sorted({*micro_batches} or {given})
    with tqdm(total=1 + len(sizes), desc="plan", disable=not progress, leave=False) as bar:
        records = _records(model, inputs, given, sizes, training=training)
        bar.update()
        found: list[Plan] = []
        for size in sizes:
            base = Configuration(
                machine,
                size,
                training=training,
                optimizer=OptimizerModel(optimizer if training else "none"),
            )
            found += plans_of(records(size), base, trials, batch=batch)
            bar.update()
    return ranked(found)


def plans_of(
    program: ProgramRecord,
    base: Configuration,
    trials: Sequence[CostSettings],
    *,
    batch: int | None = None,
) -> list[Plan]:
    """Every way to run a captured program, the best first."""
    samples = batch or max(base.samples, 64 * base.micro_batch * base.system.ipus)
    found: list[Plan] = []
    for settings in trials:
        tried = replace(base, proportion=settings.proportions[0])
        found += plans_for(units_of(program, settings), tried, batch=samples)
    return ranked(found)


def _records(
    model: nn.Module, inputs: Sequence[Any], given: int, sizes: Sequence[int], *, training: bool
) -> Callable[[int], ProgramRecord]:
    first = record(model, inputs, training=training)
    if list(sizes) == [given]:
        return lambda size: first
    second = record(model, [_doubled(value) for value in inputs], training=training)
    return for_any_batch(first, given, second, 2 * given)


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return torch.cat([value, value])
    return value


def micro_batch_of(inputs: Sequence[Any]) -> int:
    """The first size of the first tensor."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    raise InputMismatch(
        "no input has a batch dimension", fix="pass the tensors of one micro-batch, in a tuple"
    )
