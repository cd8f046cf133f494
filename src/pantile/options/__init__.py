"""`Options` and its groups, execution strategies, and the rules that span several options."""

from __future__ import annotations

from pantile.enums import AutoStage
from pantile.errors import ConfigFileError
from pantile.options.distributed import _DistributedOptions
from pantile.options.environment import DEFAULT_ENGINE, ENGINES
from pantile.options.fields import Anchor
from pantile.options.limits import (
    MAX_IPUS,
    check_inference_options,
    device_count,
    device_count_for,
)
from pantile.options.options import Options
from pantile.options.popart import _PopartOptions
from pantile.options.precision import _JitOptions, _PrecisionOptions
from pantile.options.strategy import (
    BlockId,
    ExecutionStrategy,
    ParallelPhasedExecution,
    Phase,
    PhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from pantile.options.tensor_location import TensorLocationSettings, _TensorLocationOptions
from pantile.options.training import _TrainingOptions

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "MAX_IPUS",
    "Anchor",
    "AutoStage",
    "BlockId",
    "ConfigFileError",
    "ExecutionStrategy",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PhasedExecution",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
    "check_inference_options",
    "device_count",
    "device_count_for",
]
