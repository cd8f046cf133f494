"""What the machine model says about an executor: its program, with its options translated.

Options, optimizer, placement  ──►  CostSettings + Configuration
Compiled.program               ──►  ProgramRecord
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from pantile.errors import Error
from pantile.machine.cost import CostSettings
from pantile.machine.estimate import Estimate
from pantile.machine.extract import records_of
from pantile.machine.optimizers import OptimizerModel, optimizer_named
from pantile.machine.targets import (
    BOW,
    Chip,
    System,
    chip_named,
    constants_from,
    pod,
    with_constants,
)
from pantile.machine.timing import Configuration, Recompute
from pantile.options import Options
from pantile.program.program import tag_of
from pantile.runtime.compiled import Compiled
from pantile.runtime.pipeline.plan import recomputed_stages

if TYPE_CHECKING:
    from pantile.runtime.executor import PoplarExecutor

_DEFAULT_PROPORTION = 0.6


def estimate_of(
    executor: PoplarExecutor, compiled: Compiled | None = None, *, system: System | None = None
) -> Estimate:
    """The estimate for a compiled executor; its first program unless another is given."""
    program = compiled or next(iter(executor._compiled), None)
    if program is None:
        raise Error("the model has not been compiled", fix="call the model, or compile(...), first")
    options, training = executor._options, executor._training
    ipus = program.placement.ipus_per_replica
    needed = 1 << max(0, ipus * options.replication_factor - 1).bit_length()
    machine = system or _pod_of_environment(needed)
    optimizer = executor._control.optimizer if executor._control is not None else None
    return Estimate(
        records_of(program.program),
        settings_of(options, machine.chip, ipus),
        configuration_of(options, machine, program, optimizer, training=training),
        dict(enumerate(program.placement.devices)),
    )


def chip_of_environment() -> Chip:
    """The chip named by PANTILE_CHIP, else a Bow."""
    name = os.environ.get("PANTILE_CHIP")
    return chip_named(name) if name else BOW


def _pod_of_environment(ipus: int) -> System:
    """A pod of that chip, with the constants that PANTILE_CONSTANTS names."""
    changes = constants_from(os.environ.get("PANTILE_CONSTANTS", ""))
    return with_constants(pod(chip_of_environment(), ipus), changes)


def settings_of(options: Options, chip: Chip, ipus: int) -> CostSettings:
    """Memory proportions and partial sums as the options say."""
    given = options.machineSettings()
    named = given["available_memory_proportion"]
    proportions = tuple(float(named.get(f"IPU{i}", _DEFAULT_PROPORTION)) for i in range(ipus))
    partials = "float16" if given["partials"]["matmul"] == "half" else "float32"
    return CostSettings(chip, proportions, partials)


def configuration_of(
    options: Options,
    system: System,
    program: Compiled,
    optimizer: torch.optim.Optimizer | None,
    *,
    training: bool,
) -> Configuration:
    """How the executor runs its program."""
    given = options.machineSettings()
    location = given["locations"]["optimizer"]
    return Configuration(
        system,
        program.micro_batch,
        given["gradient_accumulation" if training else "device_iterations"],
        given["replication_factor"],
        training,
        _recomputation(program, options) if training else "none",
        optimizer_model(optimizer),
        _accumulator_bytes(optimizer),
        bool(location.get("useReplicatedTensorSharding", 0)),
        location.get("onChip", 1) == 0,
        given["io_tiles"] > 0,
    )


def _recomputation(program: Compiled, options: Options) -> Recompute:
    """From the values the model marks, else from the inputs of stages; or not at all."""
    if not recomputed_stages(program.program, options, 2):
        return "none"
    marked = any(tag_of(node).checkpoint for node in program.program.graph.nodes)
    return "layer" if marked else "stage"


def optimizer_model(optimizer: torch.optim.Optimizer | None) -> OptimizerModel:
    """The cost of the user's optimizer."""
    if optimizer is None:
        return OptimizerModel("none")
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return optimizer_named(type(optimizer).__name__, momentum=momentum)


def _accumulator_bytes(optimizer: Any) -> int:
    kind = getattr(optimizer, "accum_type", None)
    return int(kind.itemsize) if isinstance(kind, torch.dtype) else 0
