"""How long a weight update takes: stages, micro-batches, replicas, optimizer, host.

IPU 0   F F F F b F b F b   b   b
IPU 1     F F F B B B B B B B       one micro-batch forward and one backward in each cycle,
IPU 2       F B F B F B …           as long as the slowest IPU takes; filling and emptying
                                    the pipeline adds 2 (P - 1) cycles

update = cycles * slowest + sum over replicas + optimizer + host input that nothing hides,
         times a factor where several hosts drive it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pantile.machine.communication import (
    all_reduce_seconds,
    gather_seconds,
    host_seconds,
    pipeline_copy_seconds,
    streaming_seconds,
)
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.targets import System
from pantile.machine.units import Unit

Recompute = Literal["none", "stage", "layer"]


@dataclass(frozen=True)
class Configuration:
    """How a program is run on a system."""

    system: System
    micro_batch: int = 1
    accumulation: int = 1
    replicas: int = 1
    training: bool = True
    recompute: Recompute = "none"
    optimizer: OptimizerModel = field(default_factory=OptimizerModel)
    accumulator_bytes: int = 0
    sharded_state: bool = False
    state_off_chip: bool = False
    overlapped_io: bool = False
    proportion: float = 0.6

    @property
    def samples(self) -> int:
        """Samples of one weight update; of one device iteration when there is none."""
        return self.micro_batch * self.accumulation * self.replicas


@dataclass(frozen=True)
class StageTime:
    """One IPU of the pipeline: seconds for one micro-batch, and once for each update."""

    forward: float
    backward: float
    recompute: float
    copies: float
    host: float
    update: float
    all_reduce: float

    @property
    def micro_batch(self) -> float:
        """Seconds for one micro-batch."""
        return self.forward + self.backward + self.recompute + self.copies + self.host


@dataclass(frozen=True)
class Timing:
    """The time of a whole update and what it consists of."""

    stages: tuple[StageTime, ...]
    cycles: int
    seconds: float
    samples: int

    @property
    def samples_per_second(self) -> float:
        """Throughput of the whole system."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bubble(self) -> float:
        """The part of the pipeline's cycles in which it fills or empties."""
        extra = 2 * (len(self.stages) - 1)
        return extra / self.cycles if self.cycles else 0.0

    @property
    def balance(self) -> float:
        """Mean over maximum of the stages' times: 1 is a perfect split."""
        spent = [stage.micro_batch for stage in self.stages]
        longest = max(spent, default=0.0)
        return sum(spent) / len(spent) / longest if longest else 1.0


def time_of(stages: Sequence[Sequence[Unit]], configuration: Configuration) -> Timing:
    """The time of one update (or of one device iteration of inference)."""
    times = [_stage_time(stages, index, configuration) for index in range(len(stages))]
    # Prefetching hides the way from the host to the gateway, unless it is the slower one.
    sharing = min(configuration.replicas, configuration.system.ipus_per_machine)
    inputs = sum(unit.input_bytes for stage in stages for unit in stage)
    feeding = host_seconds(configuration.system, inputs, sharing)
    slowest = max([feeding, *(time.micro_batch for time in times)])
    fill = len(stages) - 1
    cycles = configuration.accumulation + (2 * fill if configuration.training else fill)
    once = max(time.update for time in times) + max(time.all_reduce for time in times)
    sync = configuration.system.chip.global_sync_cycles / configuration.system.chip.clock_hz
    seconds = cycles * (slowest + (sync if fill else 0.0)) + once
    if configuration.replicas * len(stages) > configuration.system.ipus_per_host:
        seconds *= configuration.system.several_hosts_factor
    return Timing(tuple(times), cycles, seconds, configuration.samples)


def _stage_time(
    stages: Sequence[Sequence[Unit]], index: int, configuration: Configuration
) -> StageTime:
    system, units = configuration.system, stages[index]
    clock = system.chip.clock_hz
    forward = sum(unit.forward for unit in units) / clock
    host_bytes = sum(unit.input_bytes for unit in units)
    host = 0.0 if configuration.overlapped_io else streaming_seconds(system, host_bytes)
    arriving = stages[index - 1][-1].border_bytes if index else 0
    copies = pipeline_copy_seconds(system, arriving)
    if not configuration.training:
        return StageTime(forward, 0.0, 0.0, copies, host, 0.0, 0.0)
    backward = sum(unit.backward for unit in units) / clock
    if configuration.accumulation > 1:
        backward += sum(unit.accumulate for unit in units) / clock
    recompute = sum(unit.forward for unit in recomputed_of(stages, index, configuration)) / clock
    leaving = units[-1].border_bytes if index < len(stages) - 1 else 0
    copies += pipeline_copy_seconds(system, leaving)
    update, reduce = _once(units, len(stages), configuration)
    return StageTime(forward, backward, recompute, copies, host, update, reduce)


def recomputed_of(
    stages: Sequence[Sequence[Unit]], index: int, configuration: Configuration
) -> list[Unit]:
    """The units of an IPU whose forward runs again before their backward.

    The end of a pipeline does not: between its last checkpoint and the loss, what backward needs
    was computed a moment ago (PopART marks these ops so). With checkpoints at layers that is the
    last layer, with those at stages the last stage.
    """
    units, last = list(stages[index]), index == len(stages) - 1
    if configuration.recompute == "none" or (configuration.recompute == "stage" and last):
        return []
    if last and len(stages) > 1:
        return [unit for unit in units if unit.group != units[-1].group]
    return units


def _once(units: Sequence[Unit], ipus: int, configuration: Configuration) -> tuple[float, float]:
    """Seconds for the update of a stage's weights, and for summing its gradients."""
    system, replicas = configuration.system, configuration.replicas
    weights = {p.name: p for unit in units for p in unit.parameters if p.trained}
    elements = sum(p.elements for p in weights.values())
    nbytes = sum(p.bytes for p in weights.values())
    shards = replicas if configuration.sharded_state else 1
    optimizer = configuration.optimizer
    seconds = optimizer.cycles(system.chip, elements / shards, len(weights)) / system.chip.clock_hz
    if configuration.state_off_chip:
        seconds += streaming_seconds(system, 2 * optimizer.state_bytes(elements) / shards)
    if shards > 1:
        seconds += gather_seconds(system, nbytes, replicas, ipus)
    return seconds, all_reduce_seconds(system, nbytes, replicas, ipus, len(weights))
