"""`Options`: everything a script says about how its model is to be run.

    opts = Options().deviceIterations(10).replicationFactor(2)     setters chain
    opts.Training.gradientAccumulation(4)                          groups have setters too
    opts.device_iterations                                         values read in snake_case

Giving options to a model or a DataLoader freezes them; `clone()` is a copy that can change.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, Self

import torch

from pantile.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from pantile.errors import Error, OptionError, OptionRangeError
from pantile.options import environment, from_text, popart
from pantile.options.distributed import _DistributedOptions
from pantile.options.fields import FIELDS, Anchor
from pantile.options.machine import machine_settings
from pantile.options.popart import _PopartOptions
from pantile.options.precision import _JitOptions, _PrecisionOptions
from pantile.options.storage import Field, OptionGroup, plain_value
from pantile.options.strategy import ExecutionStrategy
from pantile.options.tensor_location import _TensorLocationOptions
from pantile.options.training import _TrainingOptions
from pantile.options.validate import (
    flag,
    member_of,
    path_text,
    positive,
    text,
    zero_or_one_as_flag,
)

_logger = logging.getLogger("poptorch::python")

UNLIMITED_LOGS = 2**64 - 1


class Options(OptionGroup):
    """How a model is run: steps, replicas, outputs, device, precision, engine."""

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    _DISTRIBUTED: ClassVar[type[_DistributedOptions]] = _DistributedOptions

    replication_factor: int
    input_group_size: int
    input_cgt: CommGroupType
    broadcast_buffers: bool
    device_iterations: int
    log_dir: str
    max_repeat_logs: int
    auto_round_num_ipus: bool
    anchored_tensors: dict[str, Anchor]
    output_mode: OutputMode
    output_return_period: int
    connection_type: ConnectionType
    sync_pattern: SyncPattern
    available_memory_proportion: dict[str, float]
    show_compilation_progress_bar: bool
    module_namescope: bool
    relax_optimizer_checks: bool
    source_location_excludes: list[str]
    execution_strategy: ExecutionStrategy
    chosen_engine: str
    is_strict: bool
    pin_signature: bool
    keep_packed_weights: bool
    random_seed: int
    ipu_id: int
    ipu_version: int
    use_model: bool
    model_name: str
    updatable_named_buffers: list[str]

    def __init__(self) -> None:
        super().__init__()
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._jit = _JitOptions()
        self._distributed = self._DISTRIBUTED()
        self._tensor_locations = _TensorLocationOptions()
        self._read_environment()

    def _read_environment(self) -> None:
        self.set(is_strict=environment.strict())
        if (engine := environment.engine()) is not None:
            self.engine(engine)
        if (cache_dir := environment.cache_dir()) is not None:
            self.enableExecutableCaching(cache_dir)
        defaults = environment.default_options()
        if defaults is None:
            return
        try:
            self.from_json(defaults)
        except Error as error:
            error.location = error.location or "environment variable POPTORCH_DEFAULT_OPTIONS"
            raise

    # Groups

    @property
    def Training(self) -> _TrainingOptions:
        """Options that matter for training models only."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options about the precision of the computation."""
        return self._precision

    @property
    def Jit(self) -> _JitOptions:
        """What is left of the options about tracing."""
        return self._jit

    @property
    def Distributed(self) -> _DistributedOptions:
        """The place of this process among the processes of a run."""
        return self._distributed

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where the IPU would keep each kind of tensor."""
        return self._tensor_locations

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

    def _groups(self) -> dict[str, Any]:
        return {
            "Training": self._training,
            "Precision": self._precision,
            "Jit": self._jit,
            "Distributed": self._distributed,
            "TensorLocations": self._tensor_locations,
            "_Popart": self._popart,
        }

    # How much one call of the model does

    def deviceIterations(self, device_iterations: int) -> Self:
        """Run this many iterations in each call of the model."""
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Run this many copies of the model, each on its own data."""
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Let groups of replicas read the same input. Set `replicationFactor` first."""
        name, replicas = "inputReplicaGrouping", self.replication_factor
        kind = member_of(CommGroupType)(name, input_group_type)
        if kind is CommGroupType.All:
            raise OptionError(
                f"{name} does not take CommGroupType.All",
                fix=f"write {name}({replicas}, poptorch.CommGroupType.Consecutive)",
            )
        size = 1 if kind is CommGroupType.NoGrouping else positive(name, input_group_size)
        _check_group_size(size, replicas)
        return self.set(input_group_size=size, input_cgt=kind)

    @property
    def input_groups(self) -> int:
        """How many different inputs the replicas read: R / group size."""
        _check_group_size(self.input_group_size, self.replication_factor)
        return self.replication_factor // self.input_group_size

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Keep buffers equal on all replicas; without it they go their own ways."""
        return self.set(broadcast_buffers=zero_or_one_as_flag(broadcast_buffers))

    # What comes back

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Choose which micro-batch results a call returns."""
        mode, period = _mode_and_period("outputMode", output_mode, output_return_period)
        return self.set(output_mode=mode, output_return_period=period)

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still left to the kind of model."""
        return self.output_mode is OutputMode.Default

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Record the internal tensor `long_name`; read it back as `short_name`."""
        mode: OutputMode | None = None
        period = 1
        if output_mode is not None:
            mode, period = _mode_and_period("anchorTensor", output_mode, output_return_period)
        anchor = Anchor(text("anchorTensor", long_name), mode, period)
        name = text("anchorTensor", short_name)
        self.set(anchored_tensors={**self.anchored_tensors, name: anchor})

    # Placement

    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> Self:
        """Choose how the blocks of the model run: pipelined, sharded or in phases."""
        return self.set(execution_strategy=strategy)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Reserve the next power of two instead of refusing an odd number of IPUs."""
        return self.set(auto_round_num_ipus=zero_or_one_as_flag(auto_round_num_ipus))

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Say which share of each IPU's memory large operations may take."""
        return self.set(available_memory_proportion=available_memory_proportion)

    # The device

    def useIpuModel(self, use_model: bool) -> Self:
        """Report a simulator instead of a device, whatever the environment says."""
        return self.createOrSet(use_model=zero_or_one_as_flag(use_model))

    @property
    def uses_ipu_model(self) -> bool:
        """Whether a simulator is reported: as the script said, else as the environment says."""
        return bool(self._values.get("use_model", environment.ipu_model()))

    def useIpuId(self, ipu_id: int) -> Self:
        """Use this device."""
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for a device that is not here; the model cannot be run."""
        self.createOrSet(ipu_version=ipu_version)
        return self.set(connection_type=ConnectionType.Never)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Choose when a model attaches to its device."""
        return self.set(connection_type=connection_type)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Choose how IPUs synchronise; it changes no number."""
        return self.set(sync_pattern=sync_pattern)

    # Numbers and data

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the random numbers of the device and, at once, those of torch."""
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(self.random_seed)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Compute norms in the numerically stable way."""
        self._popart.set(popart.STABLE_NORM, flag("enableStableNorm", zero_or_one_as_flag(enabled)))
        return self

    @property
    def stable_norm(self) -> bool:
        """Whether norms are computed in the numerically stable way."""
        return self._popart.is_on(popart.STABLE_NORM)

    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Feed random data made on the device, and return none.

        Scripts also pass the number of a synthetic data mode; 0 is off.
        """
        on = enabled != 0 if isinstance(enabled, int) else enabled
        # The backend's number for normally distributed data.
        self._popart.set(popart.SYNTHETIC_DATA, 2 * flag("enableSyntheticData", on))
        return self

    @property
    def synthetic_data(self) -> bool:
        """Whether data is made on the device instead of read from the host."""
        return self._popart.is_on(popart.SYNTHETIC_DATA)

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Name the buffers `copyNamedBuffersToDevice` refreshes."""
        return self.createOrSet(updatable_named_buffers=buffers)

    # Compiling, caching, reporting

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled models in this directory; None turns it off."""
        where = None if path is None else path_text("enableExecutableCaching", path)
        self._popart.set(popart.CACHING, bool(where))
        self._popart.set(popart.CACHE_PATH, where or "")
        return self

    @property
    def cache_path(self) -> str | None:
        """The directory of the executable cache, or None when caching is off."""
        if not self._popart.is_on(popart.CACHING):
            return None
        return self._popart.options.get(popart.CACHE_PATH) or None

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Count the cycles of each call, for `cycleCount()`."""
        counted = flag("logCycleCount", zero_or_one_as_flag(log_cycle_count))
        self._popart.set(popart.CYCLE_COUNT, counted)
        return self

    @property
    def log_cycle_count(self) -> bool:
        """Whether cycles are counted."""
        return self._popart.is_on(popart.CYCLE_COUNT)

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a report of each compiled model to this directory, by default the current one."""
        where = path_text("enableProfiling", profile_dir or ".")
        self._popart.setEngineOptions({"autoReport.all": "true", "autoReport.directory": where})
        return self

    @property
    def profile_dir(self) -> str | None:
        """The directory reports are written to, or None when profiling is off."""
        settings = self._popart.options.get(popart.ENGINE, {})
        if settings.get("autoReport.all") != "true":
            return None
        return str(settings.get("autoReport.directory", "."))

    def modelName(self, name: str) -> Self:
        """Name the model, for reports."""
        return self.createOrSet(model_name=name)

    def logDir(self, log_dir: str) -> Self:
        """Choose where logs are written."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Show the same message at most this often; None means always."""
        return self.set(max_repeat_logs=UNLIMITED_LOGS if max_lines is None else max_lines)

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Show a progress bar while a model compiles."""
        return self.set(show_compilation_progress_bar=zero_or_one_as_flag(show))

    def disableModuleNamescope(self) -> Self:
        """Do not prefix the names of operations with the path of their module."""
        return self.set(module_namescope=False)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Do not warn about optimizer attributes that are not known."""
        return self.set(relax_optimizer_checks=zero_or_one_as_flag(relax))

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Skip files whose path contains one of these when looking for the user's line."""
        return self.set(source_location_excludes=excludes)

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Skip these too when looking for the user's line."""
        return self.set(source_location_excludes=[*self.source_location_excludes, *excludes])

    # Ours

    def engine(self, name: str) -> Self:
        """Choose what runs the program: `reference`, `native` or `tiered`."""
        return self.createOrSet(chosen_engine=name)

    def strict(self, enabled: bool = True) -> Self:
        """Refuse what the hardware and PopTorch would refuse."""
        return self.set(is_strict=enabled)

    def pinSignature(self, enabled: bool = True) -> Self:
        """Refuse inputs that differ from the first ones in shape, type or Python value."""
        return self.set(pin_signature=enabled)

    def keepPackedWeights(self, enabled: bool = True) -> Self:
        """Pack weights once for many inference calls; False: at each, as edits in place ask for."""
        return self.set(keep_packed_weights=enabled)

    @property
    def engine_name(self) -> str:
        """The engine that runs: the chosen one, else the oracle in strict mode, else the fastest.

        A strict run is compared, with a device or with eager: one engine then computes all of it,
        the first iteration included, and equal steps give equal bits. Who asks for a cache of
        executables gets executables.
        """
        if self.exists("chosen_engine"):
            return self.chosen_engine
        compares = self.is_strict and self.cache_path is None
        return "reference" if compares else environment.DEFAULT_ENGINE

    @property
    def pins_signature(self) -> bool:
        """Whether the first input signature is the only one: asked for, or strict."""
        return self.pin_signature or self.is_strict

    # From and to text

    def loadFromFile(self, filepath: str) -> Self:
        """Apply a file with one setter on each line, such as `deviceIterations(4)`."""
        from_text.apply_file(self, path_text("loadFromFile", filepath))
        return self

    def from_json(self, string: str) -> Self:
        """Apply JSON such as `{"Training.gradientAccumulation": 4}`."""
        from_text.apply_json(self, text("from_json", string))
        return self

    def machineSettings(self) -> dict[str, Any]:
        """What these options say about the machine: replicas, memory, locations, IO tiles, …"""
        return machine_settings(self)

    def toDict(self) -> dict[str, Any]:
        """All values in one flat dict, enums as numbers."""
        if self.defaultOutputMode():
            raise OptionRangeError(
                "toDict: the output mode is still Default",
                fix="choose one first, such as outputMode(poptorch.OutputMode.All)",
            )
        flat = dict(self._values)
        flat.update(flat.pop("execution_strategy").backendOptions())
        for group in self._groups().values():
            if isinstance(group, OptionGroup):
                flat.update(group._values)
        flat.update(self._Popart.options)
        return {name: plain_value(value) for name, value in flat.items()}

    # Copies and freezing

    def clone(self) -> Self:
        """A copy that shares nothing with this one and can be changed."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin._unfreeze()
        return twin

    def __copy__(self) -> Self:
        return self.clone()

    def _freeze(self) -> None:
        super()._freeze()
        for group in self._groups().values():
            group._freeze()

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for group in self._groups().values():
            group._unfreeze()

    def __repr__(self) -> str:
        groups = ", ".join(f"{name}={group!r}" for name, group in self._groups().items())
        return f"{super().__repr__()[:-1]}, {groups})"


def _mode_and_period(option: str, mode: Any, period: Any) -> tuple[OutputMode, int]:
    wanted: OutputMode = member_of(OutputMode)(option, mode)
    if wanted is OutputMode.EveryN:
        if period is None or (isinstance(period, Integral) and period < 1):
            raise OptionRangeError(
                f"{option}: OutputMode.EveryN needs a positive period, not {period!r}",
                fix=f"write {option}(poptorch.OutputMode.EveryN, 2)",
            )
        return wanted, positive(option, period)
    if period not in (None, 1):
        _logger.info("%s: the return period is ignored, it belongs to OutputMode.EveryN", option)
    return wanted, 1


def _check_group_size(size: int, replicas: int) -> None:
    if size > replicas or replicas % size:
        raise OptionError(
            f"inputReplicaGrouping: groups of {size} do not divide {replicas} replicas",
            fix="call replicationFactor first, with a multiple of the group size",
        )
