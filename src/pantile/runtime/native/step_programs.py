"""Which programs a step runs natively.

inference               body = inference
training, G = R = 1     body = gradients and update in one
training                body = gradients, added to accumulators;  update after the last one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from pantile.errors import ProgramError
from pantile.lowering.native import StepPrograms
from pantile.passes.accumulate_gradients import accumulate_gradients
from pantile.passes.fuse_update import fuse
from pantile.program.nodes import erase
from pantile.program.program import Program
from pantile.program.spec import InputKind, TensorSpec
from pantile.runtime.compiled import Compiled
from pantile.runtime.optimizer import UpdateKind, UpdateVariant
from pantile.runtime.reduction import Reduction
from pantile.runtime.step import update_kind


@dataclass(frozen=True, eq=False)
class TrainingKind:
    """How the gradients of a step are put together, and what the update is of."""

    compiled: Compiled
    reduction: Reduction

    @property
    def update_kind(self) -> UpdateKind:
        """As the update is asked for."""
        return update_kind(self.compiled, self.reduction)

    @property
    def gradients(self) -> Mapping[str, TensorSpec]:
        """What the update is given, by parameter."""
        return {
            name: TensorSpec(
                (*self._rows(name), *spec.shape),
                self.accumulator_dtype(spec.dtype),
            )
            for name, spec in self.compiled.gradients.items()
        }

    def _rows(self, name: str) -> tuple[int, ...]:
        grouping = self.reduction.grouping
        if name in grouping.per_replica:
            return (self.reduction.replicas,)
        groups = grouping.groups.get(name)
        return () if groups is None else (max(groups) + 1,)

    def accumulator_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """In which dtype such gradients are accumulated."""
        wanted = self.reduction.accumulator_type
        return wanted if wanted is not None and dtype.is_floating_point else dtype

    @property
    def is_fused(self) -> bool:
        """Does one micro-batch make one update, on the gradients as they are?"""
        reduction = self.reduction
        specs = self.compiled.gradients.values()
        return (
            reduction.accumulation * reduction.replicas == 1
            and not reduction.grouping.groups
            and all(self.accumulator_dtype(spec.dtype) is spec.dtype for spec in specs)
        )

    def programs(self, variant: UpdateVariant) -> StepPrograms:
        """What is to be compiled; ProgramError if it cannot be."""
        if self.reduction.grouping.per_replica:
            raise ProgramError(
                "parameters with VariableRetrievalMode.AllReplicas are summed by Python",
                fix="nothing: the model runs on the reference engine",
            )
        if self.is_fused:
            return fused_step(self.compiled, variant)
        gradients, update = self.compiled.program, without_unread_numbers(variant.program)
        reduction = self.reduction
        body = accumulate_gradients(
            gradients,
            reduction.accumulator_type,
            running=reduction.running and reduction.mean and reduction.accumulation > 1,
        )
        return StepPrograms.of(body, update)


def fused_step(compiled: Compiled, variant: UpdateVariant) -> StepPrograms:
    """One program of a micro-batch and the update with its gradients."""
    update = without_unread_numbers(variant.program)
    return StepPrograms.of(fuse(compiled.program, update), None)


def without_unread_numbers(update: Program) -> Program:
    """An update without the settings its rule does not read.

    A scheduler leaves `initial_lr` in the optimizer: that is no reason to compile again.
    """
    pairs = list(zip(update.placeholders, update.inputs, strict=True))
    unread = [n.name for n, e in pairs if e.kind is InputKind.HYPER and not n.users]
    if not unread:
        return update

    def drop(graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="placeholder"):
            if node.name in unread:
                erase(node)

    return update.edit(drop, inputs=tuple(e for n, e in pairs if n.name not in unread))
