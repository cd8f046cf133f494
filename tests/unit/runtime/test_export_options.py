"""Options go to a file by their public names and come back with the same values."""

from __future__ import annotations

import json

import pytest
import torch

import poptorch
from pantile.runtime.export.decode import Reader
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.options import make_online, options_data, options_from
from pantile.runtime.export.paths import Paths


def there_and_back(options: poptorch.Options) -> poptorch.Options:
    writer = Writer()
    data = writer.value(options_data(options), "options")
    writer.check()
    records, data = json.loads(json.dumps([writer.records, data]))
    return options_from(Reader(records, [], {}, Paths()).value(data))


def every_setting() -> poptorch.Options:
    """Options in which every kind of value is set to something else than its default."""
    options = poptorch.Options().deviceIterations(3).replicationFactor(4).randomSeed(2**64 - 1)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    options.outputMode(poptorch.OutputMode.EveryN, 3).modelName("toy").engine("reference")
    options.setAvailableMemoryProportion({"IPU0": 0.25}).updatableNamedBuffers(["a.b"])
    options.anchorTensor("short", "long/name:0", poptorch.OutputMode.Sum)
    options.anchorTensor("other", "long/name:1")
    options.Training.gradientAccumulation(5)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    options.Training.setAutomaticLossScaling(True)
    options.Precision.setPartialsType(torch.half).enableStochasticRounding(True)
    options.TensorLocations.numIOTiles(64)
    options.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(7)
    )
    options._Popart.set("anything", {"nested": [1, 2.5, None]})
    return options.enableExecutableCaching("some/folder").logCycleCount(True)


def test_every_value_comes_back() -> None:
    options = every_setting()

    back = there_and_back(options)

    assert repr(back) == repr(options)
    assert back.toDict() == options.toDict()


def test_options_that_come_back_can_be_changed_and_share_nothing() -> None:
    options = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.25})

    back = there_and_back(options).deviceIterations(9)
    back.available_memory_proportion["IPU1"] = 0.5

    assert options.device_iterations == 1
    assert options.available_memory_proportion == {"IPU0": 0.25}


STRATEGIES = [
    poptorch.PipelinedExecution(),
    poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    poptorch.PipelinedExecution("a", ["b", "c"], poptorch.Stage("d").ipu(0)),
    poptorch.ShardedExecution("a", "b"),
    poptorch.SerialPhasedExecution("a", ["b"]).setTensorsLiveness(
        poptorch.Liveness.OffChipAfterFwd
    ),
    poptorch.ParallelPhasedExecution(
        poptorch.Phase(poptorch.Stage("a").ipu(0), poptorch.Stage("b").ipu(2)), "c"
    ).useSeparateBackwardPhase(),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_execution_strategy_comes_back(strategy: object) -> None:
    back = there_and_back(poptorch.Options().setExecutionStrategy(strategy)).execution_strategy

    assert type(back) is type(strategy)
    assert repr(back) == repr(strategy)
    assert back.backendOptions() == strategy.backendOptions()


def test_seed_of_the_file_does_not_seed_torch() -> None:
    options = poptorch.Options().randomSeed(5)
    torch.manual_seed(1)
    state = torch.get_rng_state()

    assert there_and_back(options).random_seed == 5
    assert torch.equal(torch.get_rng_state(), state)


def test_value_that_only_the_environment_sets_is_not_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = poptorch.Options()
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"modelName": "ambient"}')

    assert not there_and_back(options).exists("model_name")


def test_place_among_processes_is_that_of_the_loading_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(1, 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")

    back = there_and_back(options)

    assert (back.Distributed.processId, back.Distributed.numProcesses) == (3, 4)


def test_offline_target_is_dropped_and_other_connections_are_kept() -> None:
    offline = poptorch.Options().useOfflineIpuTarget(2)
    on_demand = poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)

    make_online(offline)
    make_online(on_demand)

    assert offline.connection_type == poptorch.ConnectionType.Always
    assert not offline.exists("ipu_version")
    assert on_demand.connection_type == poptorch.ConnectionType.OnDemand
