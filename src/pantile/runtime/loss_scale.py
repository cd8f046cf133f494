"""The loss scale of an executor: the optimizer's number, or one that adapts (spec 2.6).

    finalLossScale = loss_scaling of the optimizer * lossScaleUpdateFactor

With automatic loss scaling the update itself writes the scale, so that the next device iteration
sees it also where a whole call runs outside Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from pantile.options import Options
from pantile.passes.automatic_loss_scaling import COUNT, LARGEST_SCALE, SCALE, ScalingRule
from pantile.program.program import Program
from pantile.program.spec import OutputKind

_SETTINGS = "automaticLossScalingSettings."


def scaling_rule(options: Options) -> ScalingRule | None:
    """As the options say; None if the scale does not adapt."""
    if not options.Training.automatic_loss_scaling:
        return None
    given, default = options._Popart.options, ScalingRule()
    return ScalingRule(
        float(given.get(f"{_SETTINGS}binEdgeLocation", default.edge)),
        float(given.get(f"{_SETTINGS}thresholdUpperCountProportion", default.share)),
        int(given.get(f"{_SETTINGS}updatePeriod", default.period)),
    )


class LossScale:
    """A scale that adapts, and the number it started from."""

    def __init__(self, rule: ScalingRule, initial: float) -> None:
        self.rule = rule
        self._initial = initial
        self.tensors: Mapping[str, torch.Tensor] = {
            SCALE: torch.tensor(initial),
            COUNT: torch.zeros(()),
        }

    def follow(self, initial: float) -> None:
        """The optimizer has another number: keep the factor."""
        if initial != self._initial:
            factor, self._initial = self.factor, initial
            self.factor = factor

    @property
    def numbers(self) -> dict[str, float]:
        """What must be kept to go on with it later."""
        return {name: float(tensor) for name, tensor in self.tensors.items()}

    @numbers.setter
    def numbers(self, numbers: Mapping[str, float]) -> None:
        for name, tensor in self.tensors.items():
            tensor.fill_(numbers[name])

    @property
    def value(self) -> float:
        """The scale of the next loss."""
        return float(self.tensors[SCALE])

    @property
    def factor(self) -> float:
        """By how much it differs from the optimizer's number."""
        return self.value / self._initial

    @factor.setter
    def factor(self, factor: float) -> None:
        self.tensors[SCALE].fill_(min(self._initial * factor, LARGEST_SCALE))


def half_gradients(program: Program) -> tuple[str, ...]:
    """The gradients that were computed in float16, also if they were cast afterwards."""
    pairs = zip(program.outputs, program.returned, strict=True)
    return tuple(
        entry.name for entry, node in pairs if entry.kind is OutputKind.GRADIENT and _was_half(node)
    )


def _was_half(node: Any) -> bool:
    while isinstance(node, fx.Node):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype is torch.float16:
            return True
        if node.target not in _KEEPING:
            return False
        node = node.args[0]
    return False


_KEEPING = frozenset(
    {
        torch.ops.aten._to_copy.default,
        torch.ops.aten.clone.default,
        torch.ops.aten.t.default,
        torch.ops.aten.view.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.permute.default,
    }
)
