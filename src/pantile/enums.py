"""The enumerations of the public API, with the values PopTorch scripts rely on."""

from __future__ import annotations

from enum import Enum, IntEnum


class MeanReductionStrategy(IntEnum):
    """When the mean over gradients is taken; it matters only in half precision."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(IntEnum):
    """Where a `DataLoader` prepares its batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum):
    """How an asynchronous loader starts its worker and shares tensors with it."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(IntEnum):
    """Which micro-batch results an executor returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(IntEnum):
    """When an executor attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(IntEnum):
    """How ops mixing half and float were cast; accepted for old scripts, without effect."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(IntEnum):
    """How gradients of micro-batches and replicas become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(IntEnum):
    """How IPUs synchronise; it changes the estimate of a run, never its numbers."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MatMulSerializationMode(Enum):
    """Which dimension `serializedMatMul` splits."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(IntEnum):
    """How long the tensors of a phase stay on the chip."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(Enum):
    """How far the transfer of a tensor may overlap with compute."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(IntEnum):
    """How blocks that no `Stage` lists are numbered."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(IntEnum):
    """How the convolutions of a `MultiConv` share the chip."""

    Parallel = 0
    Serial = 1


class CommGroupType(IntEnum):
    """How replicas form groups."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class Compiler(IntEnum):
    """Which of PopTorch's compilers a function was meant for; there is one here."""

    PopART = 0
    MLIR = 1


class VariableRetrievalMode(IntEnum):
    """Which copies of a grouped weight are read back. The gap in the values is PopTorch's."""

    OnePerGroup = 0
    AllReplicas = 2


__all__ = [
    "AutoStage",
    "CommGroupType",
    "Compiler",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]
