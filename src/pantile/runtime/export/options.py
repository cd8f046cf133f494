"""Options as plain data by their public names, so that another version can read what it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pantile.enums import AutoStage, ConnectionType, Liveness
from pantile.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from pantile.options.storage import UNSET, OptionGroup
from pantile.options.strategy import ExecutionStrategy, PhasedExecution

_GROUPS = ("Training", "Precision", "Jit", "TensorLocations")
_STRATEGY = "execution_strategy"
_STRATEGIES: Mapping[str, type[ExecutionStrategy]] = {
    cls.__name__: cls
    for cls in (
        PipelinedExecution,
        ShardedExecution,
        SerialPhasedExecution,
        ParallelPhasedExecution,
    )
}


def options_data(options: Options) -> dict[str, Any]:
    """All values. The place of this process among others is not one: it is asked for anew."""
    values = {k: v for k, v in options._values.items() if k != _STRATEGY}
    return {
        "class": type(options),
        "values": values,
        "strategy": strategy_data(options.execution_strategy),
        "groups": {name: dict(options._groups()[name]._values) for name in _GROUPS},
        "popart": dict(options._Popart.options),
    }


def options_from(data: Mapping[str, Any]) -> Options:
    """Options with these values, which can be changed. Torch's generator is not seeded."""
    cls = data["class"]
    if not issubclass(cls, Options):
        raise TypeError(f"{cls.__name__} is no kind of Options")
    options: Options = cls()
    _set_values(options, data["values"])
    options.set(execution_strategy=strategy_from(data["strategy"]))
    for name, values in data["groups"].items():
        _set_values(options._groups()[name], values)
    options._Popart.options.clear()
    for key, value in data["popart"].items():
        options._Popart.set(key, value)
    return options


def make_online(options: Options) -> None:
    """A model that was compiled for an absent device is loaded to be run."""
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)


def _set_values(group: OptionGroup, values: Mapping[str, Any]) -> None:
    for name, field in group.FIELDS.items():
        if field.default is UNSET and name not in values:
            group.deleteIfExists(name)
    for name, value in values.items():
        # A default need not pass the check of its setter: leave alone what is right already.
        if not group.exists(name) or group(name) != value:
            group.createOrSet(**{name: value})


def strategy_data(strategy: ExecutionStrategy) -> dict[str, Any]:
    """An execution strategy as names, lists and numbers."""
    name = next(n for n, cls in _STRATEGIES.items() if type(strategy) is cls)
    data: dict[str, Any] = {"name": name}
    if isinstance(strategy, PhasedExecution):
        data["phases"] = [[_stage_data(s) for s in phase.stages] for phase in strategy.phases]
        data["separate_backward"] = strategy._separate_backward_phase
        data["liveness"] = strategy._tensors_liveness.name
    elif isinstance(strategy, PipelinedExecution):
        data["auto"] = None if strategy.auto_stage is None else strategy.auto_stage.name
        data["stages"] = [_stage_data(stage) for stage in strategy.stages]
    return data


def strategy_from(data: Mapping[str, Any]) -> ExecutionStrategy:
    """The execution strategy of such data."""
    cls: Any = _STRATEGIES[data["name"]]
    if "phases" not in data:
        if data["auto"] is not None:
            return cls(AutoStage[data["auto"]])  # type: ignore[no-any-return]
        return cls(*map(_stage_from, data["stages"]))  # type: ignore[no-any-return]
    phases = [Phase(*map(_stage_from, stages)) for stages in data["phases"]]
    strategy: PhasedExecution = cls(*phases).useSeparateBackwardPhase(data["separate_backward"])
    strategy._tensors_liveness = Liveness[data["liveness"]]
    return strategy


def _stage_data(stage: Stage) -> list[Any]:
    return [list(stage.blocks), stage.ipu_id]


def _stage_from(data: list[Any]) -> Stage:
    blocks, ipu_id = data
    stage = Stage(*blocks)
    return stage if ipu_id is None else stage.ipu(ipu_id)
