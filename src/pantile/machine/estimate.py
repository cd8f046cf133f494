"""A program on a machine: its ops priced, its stages timed, its memory filled.

ProgramRecord + CostSettings + Configuration  ──►  Estimate  ──►  plan, report, advice
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pantile.machine.advice import Change, changes_for
from pantile.machine.calibration import ERROR_BANDS
from pantile.machine.cost import CostSettings, OpCost, program_costs
from pantile.machine.memory import StageMemory, Verdict, memory_of, verdict_of
from pantile.machine.records import ProgramRecord
from pantile.machine.timing import Configuration, Timing, time_of
from pantile.machine.units import Unit, units_of


@dataclass(frozen=True)
class Estimate:
    """What the model says about one program in one configuration."""

    record: ProgramRecord
    settings: CostSettings
    configuration: Configuration
    ipu_of_stage: Mapping[int, int]

    @cached_property
    def costs(self) -> list[OpCost]:
        """The cost of every op."""
        return program_costs(self.record, self.settings)

    @cached_property
    def units(self) -> list[Unit]:
        """The pieces of the program, in order."""
        return units_of(self.record, self.settings, costs=self.costs)

    @cached_property
    def stages(self) -> list[list[Unit]]:
        """The units on each IPU of a replica."""
        used = sorted({self.ipu(unit.stage) for unit in self.units})
        return [[u for u in self.units if self.ipu(u.stage) == ipu] for ipu in used] or [[Unit("")]]

    def ipu(self, stage: int) -> int:
        """The IPU a stage of the program is on."""
        return self.ipu_of_stage.get(stage, stage)

    @cached_property
    def timing(self) -> Timing:
        """The time of an update, or of a device iteration."""
        return time_of(self.stages, self.configuration)

    @cached_property
    def memory(self) -> list[StageMemory]:
        """The memory of each IPU."""
        return memory_of(self.stages, self.configuration)

    @property
    def verdict(self) -> Verdict:
        """Whether it fits."""
        return verdict_of(self.memory, self.settings.chip)

    @cached_property
    def changes(self) -> list[Change]:
        """What would free memory, the best first."""
        proportion = min(self.settings.proportions)
        return changes_for(self.stages, self.configuration, proportion=proportion)

    @property
    def band(self) -> tuple[float, float]:
        """Throughput, lower and upper, by the errors seen on published results."""
        convolutional = any(cost.kind == "conv" for cost in self.costs)
        low, high = ERROR_BANDS["convolution" if convolutional else "general"]
        speed = self.timing.samples_per_second
        return speed / (1 + high), speed / (1 + low)
