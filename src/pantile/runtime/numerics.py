"""How numbers are computed, as the options ask: what every program of an executor goes through."""

from __future__ import annotations

from dataclasses import dataclass

from pantile.lowering.reference import ReferenceExecutable
from pantile.options import Options
from pantile.passes.automatic_loss_scaling import ScalingRule
from pantile.passes.stochastic_rounding import stochastic_rounding
from pantile.program.program import Program
from pantile.runtime.loss_scale import scaling_rule


@dataclass(frozen=True)
class Numerics:
    """Which of the options about precision are on."""

    exceptions: bool = False
    stochastic: bool = False
    scaling: ScalingRule | None = None

    @staticmethod
    def of(options: Options) -> Numerics:
        """As the options say."""
        precision = options.Precision
        return Numerics(
            precision.floating_point_exceptions,
            precision.stochastic_rounding,
            scaling_rule(options),
        )

    def lowered(self, program: Program) -> ReferenceExecutable:
        """The program with the roundings and checks that are asked for."""
        if self.stochastic:
            program = stochastic_rounding(program)
        return ReferenceExecutable(program, checked=self.exceptions)


def why_reference(options: Options) -> str | None:
    """What of the options only the reference engine can do, if anything."""
    if options.anchored_tensors:
        return "anchored tensors are read by Python after each micro-batch"
    if options.Precision.floating_point_exceptions:
        return "floating-point exceptions are looked for after each op"
    return None
