"""Enumerations of the old backend, with its names and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

__all__ = [
    "AccumulateOuterFragmentSchedule",
    "AnchorReturnType",
    "AnchorReturnTypeId",
    "BatchSerializationBatchSchedule",
    "DataFlow",
    "GradientTensorTrackingMethod",
    "MergeVarUpdateType",
    "RecomputationType",
    "ReplicatedTensorSharding",
    "SubgraphCopyingStrategy",
    "SyntheticDataMode",
    "TensorStorage",
    "VirtualGraphMode",
]


class RecomputationType(IntEnum):
    """Which activations are computed again in backward."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class AccumulateOuterFragmentSchedule(IntEnum):
    """How the ops of a weight update are ordered."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(IntEnum):
    """When the inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyntheticDataMode(IntEnum):
    """Where the data of a run without data comes from."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class VirtualGraphMode(IntEnum):
    """Who places ops on IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class MergeVarUpdateType(IntEnum):
    """Which weight updates are merged."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class GradientTensorTrackingMethod(IntEnum):
    """Which gradients an automatic loss scale looks at."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class BatchSerializationBatchSchedule(IntEnum):
    """How the parts of a serialised batch are ordered."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class TensorStorage(IntEnum):
    """Where a tensor is kept."""

    OffChip = 0
    OnChip = 1


class ReplicatedTensorSharding(IntEnum):
    """Whether each replica keeps a part of a tensor."""

    Off = 0
    On = 1


class AnchorReturnTypeId(IntEnum):
    """Which values of an anchored tensor are returned."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


@dataclass(frozen=True)
class AnchorReturnType:
    """The name of a way to return an anchored tensor: "All", "Final", "EveryN" or "Sum"."""

    name: str
    period: int = 1

    def id(self) -> AnchorReturnTypeId:
        """Its number."""
        return AnchorReturnTypeId[self.name]


@dataclass(frozen=True)
class DataFlow:
    """How many batches a step has, and what it returns."""

    batchesPerStep: int
    anchorTensors: Mapping[str, AnchorReturnType] | Any = field(default_factory=dict)
    anchorReturnType: AnchorReturnType = field(default_factory=lambda: AnchorReturnType("All"))
