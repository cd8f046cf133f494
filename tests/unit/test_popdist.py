"""popdist without a launcher: one instance, and options that leave placement to the launcher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import popdist
import popdist.poptorch
from pantile.errors import Error
from pantile.options import Options


def test_a_run_without_a_launcher_is_one_instance() -> None:
    popdist.init()

    assert popdist.isPopdistEnvSet() is False
    assert popdist.getInstanceIndex() == 0
    assert popdist.getNumInstances() == 1
    assert popdist.getNumTotalReplicas() == 1
    assert popdist.getNumLocalReplicas() == 1
    assert popdist.getNumIpusPerReplica() == 1


def test_a_function_runs_only_on_the_named_instances() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert popdist.execute_on_instances({0}, add, 1, b=2) == 3
    assert popdist.execute_on_instances({1}, add, 1, b=2) is None


def test_launched_options_are_options() -> None:
    options = popdist.poptorch.Options(ipus_per_replica=2).deviceIterations(4)

    assert isinstance(options, Options)
    assert (options.device_iterations, options.replication_factor) == (4, 1)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    assert options.ipus_per_replica == 2
    assert repr(options).startswith("Options(")
    assert copy.deepcopy(options).ipus_per_replica == 2


def test_the_ipus_of_a_replica_default_to_the_launchers() -> None:
    assert popdist.poptorch.Options().ipus_per_replica == 1


def test_launched_options_do_not_ask_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")

    assert popdist.poptorch.Options().Distributed.numProcesses == 1


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("useIpuId", lambda o: o.useIpuId(1)),
        ("replicationFactor", lambda o: o.replicationFactor(2)),
        ("Distributed.disable", lambda o: o.Distributed.disable()),
        ("Distributed.setEnvVarNames", lambda o: o.Distributed.setEnvVarNames("A", "B")),
        ("Distributed.configureProcessId", lambda o: o.Distributed.configureProcessId(0, 2)),
        ("Distributed.configureProcessId", lambda o: o.Distributed.configureProcessId(1)),
    ],
)
@pytest.mark.parametrize("prepare", [lambda o: o, lambda o: o.clone()])
def test_what_the_launcher_decides_cannot_be_called(
    name: str,
    call: Callable[[popdist.poptorch.Options], Any],
    prepare: Callable[[popdist.poptorch.Options], popdist.poptorch.Options],
) -> None:
    options = prepare(popdist.poptorch.Options(ipus_per_replica=1))

    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch") as caught:
        call(options)

    assert isinstance(caught.value, Error)
    assert caught.value.fix


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_replica_takes_a_whole_number_of_ipus(count: Any) -> None:
    with pytest.raises(ValueError, match="ipus_per_replica"):
        popdist.poptorch.Options(ipus_per_replica=count)
