"""`Options.Training`: gradient accumulation, gradient reduction, loss scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pantile.enums import MeanReductionStrategy, ReductionType
from pantile.errors import OptionError
from pantile.options.popart import AUTOMATIC_LOSS_SCALING, _PopartOptions
from pantile.options.storage import Field, OptionGroup
from pantile.options.validate import flag, member_of, positive, zero_or_one_as_flag


def _sum_or_mean(option: str, value: Any) -> ReductionType:
    if value not in (ReductionType.Sum, ReductionType.Mean) or isinstance(value, bool):
        raise OptionError(
            f"{option} takes ReductionType.Sum or ReductionType.Mean, not {value!r}",
            fix=f"write {option}(poptorch.ReductionType.Mean)",
        )
    return ReductionType(value)


class _TrainingOptions(OptionGroup):
    """Options that matter for training models only."""

    PREFIX = "Training."
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "gradient_accumulation": Field(positive, 1, setter="gradientAccumulation"),
        "accumulation_and_replication_reduction_type": Field(
            _sum_or_mean, ReductionType.Mean, setter="accumulationAndReplicationReductionType"
        ),
        # The one attribute PopTorch spells in camelCase; clients read it under this name.
        "meanAccumulationAndReplicationReductionStrategy": Field(
            member_of(MeanReductionStrategy),
            MeanReductionStrategy.Post,
            setter="setMeanAccumulationAndReplicationReductionStrategy",
        ),
    }

    gradient_accumulation: int
    accumulation_and_replication_reduction_type: ReductionType
    meanAccumulationAndReplicationReductionStrategy: MeanReductionStrategy

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__()
        self._popart = popart

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Add up the gradients of this many micro-batches before each weight update."""
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Apply the sum or the mean of the gradients of micro-batches and replicas."""
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Choose when a mean of gradients is divided: as it runs, or once at the end."""
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Scale the loss by a factor that adapts to the range of half precision gradients."""
        checked = flag("Training.setAutomaticLossScaling", zero_or_one_as_flag(enabled))
        self._popart.set(AUTOMATIC_LOSS_SCALING, checked)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Spread convolutions over the tiles; it changes no number."""
        checked = flag("Training.setConvolutionDithering", zero_or_one_as_flag(enabled))
        self._popart.setConvolutionOptions({"enableConvolutionDithering": str(checked).lower()})
        return self

    @property
    def automatic_loss_scaling(self) -> bool:
        """Whether the loss scale adapts by itself."""
        return self._popart.is_on(AUTOMATIC_LOSS_SCALING)
