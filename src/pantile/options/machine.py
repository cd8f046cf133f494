"""What the options say about the machine, in one dictionary for the machine model.

    machine_settings(options)    replicas, IO tiles, memory, locations, partials, scheduling
    captured.hints               what forward said about single tensors (capture/hints.py)

None of these changes a number that a model computes (docs/memory-options.md says so row by row);
the machine model turns them into bytes and cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pantile.options import popart
from pantile.options.strategy import PhasedExecution

if TYPE_CHECKING:
    from pantile.options.options import Options

# Settings of the backend that change what a compiled IPU program costs.
_COST_SETTINGS = (
    "accumulateOuterFragmentSettings.schedule",
    "accumulateOuterFragmentSettings.excludedVirtualGraphs",
    "autoRecomputation",
    "batchSerializationSettings.factor",
    "defaultBufferingDepth",
    "defaultPrefetchBufferingDepth",
    "disableGradAccumulationTensorStreams",
    "disableOptimizerStateTensorStreams",
    "enableOutlining",
    "enablePrefetchDatastreams",
    "engineOptions",
    "explicitRecomputation",
    "matmulOptions",
    "outlineThreshold",
    "subgraphCopyingStrategy",
    "timeLimitScheduler",
    "virtualGraphMode",
)


def machine_settings(options: Options) -> dict[str, Any]:
    """All that matters for an estimate, as plain values: numbers, strings, lists, dicts."""
    raw = options._Popart.options
    locations, strategy = options.TensorLocations, options.execution_strategy
    # Between phases tensors leave the chip, unless their location says otherwise.
    phases = {"onChip": 0} if isinstance(strategy, PhasedExecution) and strategy.off_chip else {}
    convolution = raw.get(popart.CONVOLUTION, {})
    return {
        "device_iterations": options.device_iterations,
        "gradient_accumulation": options.Training.gradient_accumulation,
        "replication_factor": options.replication_factor,
        "input_group_size": options.input_group_size,
        "num_processes": options.Distributed.numProcesses,
        "strategy": options.execution_strategy.backendOptions(),
        "auto_round_num_ipus": options.auto_round_num_ipus,
        "output_mode": options.output_mode.name,
        "output_return_period": options.output_return_period,
        "ipu_version": options.ipu_version if options.exists("ipu_version") else 2,
        "sync_pattern": options.sync_pattern.name,
        "synthetic_data": options.synthetic_data,
        "available_memory_proportion": dict(options.available_memory_proportion),
        "io_tiles": locations.num_io_tiles,
        "locations": {
            "activation": {**phases, **locations.location_activation},
            "weight": {**phases, **locations.location_weight},
            "optimizer": {**phases, **locations.location_optimizer},
            "accumulator": {**phases, **locations.location_accumulator},
        },
        "partials": {
            "matmul": raw.get(popart.MATMUL_PARTIALS, "float"),
            "convolution": convolution.get("partialsType", "float"),
        },
        "convolution_dithering": convolution.get("enableConvolutionDithering") == "true",
        "stochastic_rounding": options.Precision.stochastic_rounding,
        "backend": {name: raw[name] for name in _COST_SETTINGS if name in raw},
    }
