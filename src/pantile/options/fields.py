"""The values `Options` itself holds: their defaults, their checks, and who sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pantile.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from pantile.errors import OptionError
from pantile.options import environment
from pantile.options.storage import Field
from pantile.options.strategy import ExecutionStrategy, PipelinedExecution
from pantile.options.validate import (
    flag,
    instance_of,
    integer,
    member_of,
    not_negative,
    one_of,
    path_text,
    positive,
    proportions,
    text,
    texts,
)

IPU_VERSIONS = tuple(environment.IPU_VERSIONS.values())

LIBRARY_FILES = ("/torch/", "/pantile/", "/poptorch/")
"""Parts of paths that a user's own line is not expected in."""


class Anchor(NamedTuple):
    """An internal tensor to record; mode None means the mode of the model's outputs."""

    long_name: str
    output_mode: OutputMode | None
    output_return_period: int


def _seed(option: str, value: Any) -> int:
    seed = integer(option, value)
    if not -(2**63) <= seed < 2**64:
        raise OptionError(f"{option}: {seed} does not fit 64 bits", fix=f"write {option}(42)")
    return seed


def _ipu_version(option: str, value: Any) -> int:
    version = integer(option, value)
    if version not in IPU_VERSIONS:
        raise OptionError(
            f"{option} knows the IPU versions {IPU_VERSIONS}, not {version}",
            fix=f"write {option}(2)",
        )
    return version


FIELDS: Mapping[str, Field] = {
    "replication_factor": Field(positive, 1, setter="replicationFactor"),
    "input_group_size": Field(positive, 1, setter="inputReplicaGrouping"),
    "input_cgt": Field(
        member_of(CommGroupType), CommGroupType.Consecutive, setter="inputReplicaGrouping"
    ),
    "broadcast_buffers": Field(flag, True, setter="broadcastBuffers"),
    "device_iterations": Field(positive, 1, setter="deviceIterations"),
    "log_dir": Field(path_text, ".", setter="logDir"),
    "max_repeat_logs": Field(not_negative, 4, setter="maxRepeatLogs"),
    "auto_round_num_ipus": Field(flag, False, setter="autoRoundNumIPUs"),
    "anchored_tensors": Field(instance_of(dict), {}, setter="anchorTensor"),
    "output_mode": Field(member_of(OutputMode), OutputMode.Default, setter="outputMode"),
    "output_return_period": Field(positive, 1, setter="outputMode"),
    "connection_type": Field(
        member_of(ConnectionType), ConnectionType.Always, setter="connectionType"
    ),
    "sync_pattern": Field(member_of(SyncPattern), SyncPattern.Full, setter="syncPattern"),
    "available_memory_proportion": Field(proportions, {}, setter="setAvailableMemoryProportion"),
    "show_compilation_progress_bar": Field(flag, True, setter="showCompilationProgressBar"),
    "module_namescope": Field(flag, True, setter="disableModuleNamescope"),
    "relax_optimizer_checks": Field(flag, False, setter="relaxOptimizerAttributesChecks"),
    "source_location_excludes": Field(texts, [*LIBRARY_FILES], setter="sourceLocationExcludes"),
    "execution_strategy": Field(
        instance_of(ExecutionStrategy), PipelinedExecution(), setter="setExecutionStrategy"
    ),
    "is_strict": Field(flag, False, setter="strict"),
    "pin_signature": Field(flag, False, setter="pinSignature"),
    "keep_packed_weights": Field(flag, True, setter="keepPackedWeights"),
    # These exist only once they were set.
    "chosen_engine": Field(one_of(*environment.ENGINES), setter="engine"),
    "random_seed": Field(_seed, setter="randomSeed"),
    "ipu_id": Field(not_negative, setter="useIpuId"),
    "ipu_version": Field(_ipu_version, setter="useOfflineIpuTarget"),
    "use_model": Field(flag, setter="useIpuModel"),
    "model_name": Field(text, setter="modelName"),
    "updatable_named_buffers": Field(texts, setter="updatableNamedBuffers"),
}
