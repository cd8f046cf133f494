"""Checks of raw backend settings, and of options that only make sense together; strict mode only.

PopTorch hands `_Popart` settings to the backend, which knows its own names and refuses others. Here
one of them changes numbers, and only in strict mode (`groupNormStridedChannelGrouping`); a script
that will run on hardware wants to hear of a misspelt one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pantile.enums import OutputMode
from pantile.errors import CaptureError, OptionError
from pantile.options.report import log_values
from pantile.options.validate import did_you_mean

if TYPE_CHECKING:
    from pantile.options.options import Options

_BOOL = """
    aliasZeroCopy automaticLossScalingSettings.enabled
    batchSerializationSettings.concatOnExecutionPhaseChange
    batchSerializationSettings.concatOnPipelineStageChange
    batchSerializationSettings.concatOnVirtualGraphChange compileEngine constantWeights
    createHostTransferableTensorWithOffset decomposeGradSum delayVarUpdates
    disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams dotOpNames
    enableConstantFoldingOfMultipleConsumers enableDistributedReplicatedGraphs
    enableEfficientOverlapIOTopoCons enableEngineCaching enableExplicitIR enableExplicitMainLoops
    enableFloatingPointChecks enableFloatingPointExceptions enableFullyConnectedPass
    enableGradientAccumulation enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState
    enableMergeExchange enableNonStableSoftmax enableOutlining enableOutliningCopyCostPruning
    enablePipelining enablePrefetchDatastreams enableReplicatedGraphs enableSerializedMatmuls
    enableStableNorm enableStochasticRounding enableSupportedDataTypeCasting enableVariablesCaching
    ensureFp32LossScaleTensor explicitRecomputation exportPoplarComputationGraph
    exportPoplarVertexGraph groupHostSync groupNormStridedChannelGrouping
    instrumentWithHardwareCycleCounter opxAliasChecking opxModifyChecking rearrangeAnchorsOnHost
    rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllGatherCollectives
    replicatedCollectivesSettings.mergeAllReduceCollectives
    replicatedCollectivesSettings.mergeReduceScatterCollectives
    replicatedCollectivesSettings.prepareScheduleForMergingCollectives
    scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs strictOpVersions
    useHostCopyOps
"""
_INTEGER = """
    accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType
    accumulationFactor autoRecomputation autodiffSettings.stitchStrategy
    automaticLossScalingSettings.gradientTensorTrackingMethod
    automaticLossScalingSettings.updatePeriod batchSerializationSettings.batchSchedule
    batchSerializationSettings.factor batchSerializationSettings.method
    batchSerializationSettings.transformContext compilationProgressTotal defaultBufferingDepth
    defaultPrefetchBufferingDepth executionPhaseSettings.phases executionPhaseSettings.stages
    finalDotOp firstDotOp globalReplicaOffset globalReplicationFactor looseThresholdAtPeak
    meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold
    numIOTiles patterns_level subgraphCopyingStrategy swapLimitScheduler syntheticDataMode
    transitiveClosureOptimizationThreshold virtualGraphMode
"""
_NUMBER = """
    automaticLossScalingSettings.binEdgeLocation
    automaticLossScalingSettings.thresholdUpperCountProportion outlineSequenceBreakCost
    outlineThreshold timeLimitScheduler
"""
_STRING = """
    cachePath customCodeletCompileFlags kahnTieBreaker logDir partialsTypeMatMuls
    saveInitializersToFile serializedPoprithmsShiftGraphsDir
"""
_CONTAINER = """
    accumulateOuterFragmentSettings.excludedVirtualGraphs
    automaticLossScalingSettings.toTrackTensors convolutionOptions customCodelets dotChecks
    engineOptions gclOptions hardwareInstrumentations lstmOptions matmulOptions patterns
    reportOptions
"""
# An int may stand for a number, and for a flag (0 or 1).
_KINDS: tuple[tuple[str, type | tuple[type, ...], frozenset[str]], ...] = (
    ("bool", bool, frozenset(_BOOL.split())),
    ("integer", int, frozenset((_INTEGER + _NUMBER + _BOOL).split())),
    ("floating point", float, frozenset(_NUMBER.split())),
    ("string", str, frozenset(_STRING.split())),
    ("set, list or dict", (dict, list, tuple, set), frozenset(_CONTAINER.split())),
)
KNOWN = frozenset(name for _, _, names in _KINDS for name in names)
"""Names of settings of the backend that scripts may set."""


def check_backend_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the backend does not know, or whose value it could not take."""
    for name, value in settings.items():
        kind, names = _kind_of(name, value)
        if name not in names:
            raise OptionError(
                f"Unknown {kind} option {name} for _Popart.set",
                fix=_advice(name),
            )


def validate_values(values: Mapping[str, Any]) -> None:
    """Refuse what the backend could not take of `Options.toDict()`, and log the rest."""
    from pantile.options.fields import FIELDS
    from pantile.options.options import Options

    plain = Options().outputMode(OutputMode.All)
    own = plain.toDict().keys() - plain._Popart.options.keys() | FIELDS.keys()
    strategies = {"serial_phases_execution", "separate_backward_phase", "tensors_liveness"}
    check_backend_settings({k: v for k, v in values.items() if k not in own | strategies})
    log_values(values)


def _kind_of(name: str, value: Any) -> tuple[str, frozenset[str]]:
    for kind, accepted, names in _KINDS:
        if isinstance(value, accepted):
            return kind, names
    raise OptionError(
        f"Unknown value type {type(value).__name__} for option {name}",
        fix="use a bool, a number, a string, or a list, set or dict of these",
    )


def _advice(name: str) -> str:
    for kind, _, names in _KINDS:
        if name in names:
            return f"give {name} a {kind} value"
    return did_you_mean(name, KNOWN) or "remove it, or leave strict mode"


def check_overlap_options(options: Options, kinds: Iterable[str]) -> None:
    """Refuse transfers beside compute where the device has no room or no time for them.

    `kinds` are the hints that ask for overlap: `overlap_input` or `overlap_output`.
    """
    wanted = set(kinds)
    if not wanted:
        return
    if options.execution_strategy.is_pipelined:
        raise CaptureError(
            "Overlapped IO is not supported with poptorch.PipelinedExecution.",
            fix="use poptorch.ShardedExecution, which is the same on one IPU",
        )
    if not options.TensorLocations.num_io_tiles:
        raise CaptureError(
            "No IO tiles allocated. Overlapped IO needs at least 32 of them",
            fix="call options.TensorLocations.numIOTiles(32)",
        )
    if "overlap_output" in wanted and options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise CaptureError(
            "overlapped outputs need OutputMode.All or OutputMode.Sum, not "
            f"OutputMode.{options.output_mode.name}",
            fix="call options.outputMode(poptorch.OutputMode.All)",
        )
