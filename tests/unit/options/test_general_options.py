"""Every row of the table of general options: default, effect, error class and fragment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pantile.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from pantile.errors import Error
from pantile.options import (
    Options,
    ParallelPhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
)

DEFAULTS = {
    "replication_factor": 1,
    "input_group_size": 1,
    "input_cgt": CommGroupType.Consecutive,
    "broadcast_buffers": True,
    "device_iterations": 1,
    "log_dir": ".",
    "max_repeat_logs": 4,
    "auto_round_num_ipus": False,
    "anchored_tensors": {},
    "output_mode": 4,
    "output_return_period": 1,
    "connection_type": 0,
    "sync_pattern": 0,
    "available_memory_proportion": {},
    "show_compilation_progress_bar": True,
    "module_namescope": True,
    "relax_optimizer_checks": False,
    "stable_norm": False,
    "synthetic_data": False,
    "log_cycle_count": False,
    "profile_dir": None,
    "cache_path": None,
    "uses_ipu_model": False,
    "engine_name": "native",
    "is_strict": False,
    "pin_signature": False,
    "keep_packed_weights": True,
    "pins_signature": False,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_an_option_has_its_default(name: str, value: object) -> None:
    assert getattr(Options(), name) == value
    assert Options()(name) == value


@pytest.mark.parametrize(
    "name",
    ["random_seed", "ipu_id", "ipu_version", "use_model", "model_name", "updatable_named_buffers"],
)
def test_an_option_without_a_default_exists_only_once_set(name: str) -> None:
    options = Options()

    assert not options.exists(name)
    with pytest.raises(AttributeError, match="is not set"):
        getattr(options, name)


EFFECTS = [
    ("deviceIterations", (7,), {"device_iterations": 7}),
    ("deviceIterations", (np.int64(7),), {"device_iterations": 7}),
    ("replicationFactor", (4,), {"replication_factor": 4}),
    ("inputReplicaGrouping", (1, CommGroupType.Orthogonal), {"input_cgt": 2}),
    ("inputReplicaGrouping", (8, CommGroupType.NoGrouping), {"input_group_size": 1}),
    ("broadcastBuffers", (False,), {"broadcast_buffers": False}),
    ("broadcastBuffers", (), {"broadcast_buffers": True}),
    ("outputMode", (OutputMode.All,), {"output_mode": OutputMode.All, "output_return_period": 1}),
    ("outputMode", (OutputMode.EveryN, 3), {"output_mode": 1, "output_return_period": 3}),
    ("outputMode", (OutputMode.Sum, 3), {"output_mode": 3, "output_return_period": 1}),
    ("autoRoundNumIPUs", (), {"auto_round_num_ipus": True}),
    (
        "setAvailableMemoryProportion",
        ({"IPU0": 0.3},),
        {"available_memory_proportion": {"IPU0": 0.3}},
    ),
    ("randomSeed", (42,), {"random_seed": 42}),
    ("enableExecutableCaching", ("cache",), {"cache_path": "cache"}),
    ("enableExecutableCaching", (None,), {"cache_path": None}),
    ("useIpuModel", (True,), {"use_model": True, "uses_ipu_model": True}),
    ("useIpuId", (3,), {"ipu_id": 3}),
    ("useOfflineIpuTarget", (), {"ipu_version": 2, "connection_type": ConnectionType.Never}),
    ("useOfflineIpuTarget", (21,), {"ipu_version": 21}),
    ("connectionType", (ConnectionType.OnDemand,), {"connection_type": ConnectionType.OnDemand}),
    ("syncPattern", (SyncPattern.ReplicaAndLadder,), {"sync_pattern": 2}),
    ("enableStableNorm", (True,), {"stable_norm": True}),
    ("enableSyntheticData", (True,), {"synthetic_data": True}),
    ("enableSyntheticData", (2,), {"synthetic_data": True}),
    ("enableSyntheticData", (0,), {"synthetic_data": False}),
    ("logCycleCount", (True,), {"log_cycle_count": True}),
    ("enableProfiling", (), {"profile_dir": "."}),
    ("enableProfiling", ("reports",), {"profile_dir": "reports"}),
    ("modelName", ("bert",), {"model_name": "bert"}),
    ("logDir", ("logs",), {"log_dir": "logs"}),
    ("maxRepeatLogs", (9,), {"max_repeat_logs": 9}),
    ("maxRepeatLogs", (None,), {"max_repeat_logs": 2**64 - 1}),
    ("showCompilationProgressBar", (False,), {"show_compilation_progress_bar": False}),
    ("disableModuleNamescope", (), {"module_namescope": False}),
    ("relaxOptimizerAttributesChecks", (), {"relax_optimizer_checks": True}),
    ("updatableNamedBuffers", (["a", "b"],), {"updatable_named_buffers": ["a", "b"]}),
    ("sourceLocationExcludes", (["x"],), {"source_location_excludes": ["x"]}),
    ("engine", ("native",), {"engine_name": "native"}),
    ("engine", ("tiered",), {"engine_name": "tiered"}),
    ("strict", (), {"is_strict": True, "pins_signature": True}),
    ("strict", (False,), {"is_strict": False}),
    ("keepPackedWeights", (False,), {"keep_packed_weights": False}),
    ("pinSignature", (), {"pin_signature": True, "pins_signature": True, "is_strict": False}),
]


@pytest.mark.parametrize(("setter", "arguments", "effects"), EFFECTS)
def test_a_setter_stores_its_value_and_returns_the_options(
    setter: str, arguments: tuple[Any, ...], effects: dict[str, Any]
) -> None:
    options = Options()

    returned = getattr(options, setter)(*arguments)

    assert returned is options
    assert {name: getattr(options, name) for name in effects} == effects


NAN = float("nan")
REFUSED = [
    ("deviceIterations", (0,), ValueError, "at least 1, not 0"),
    ("deviceIterations", (-1,), ValueError, "at least 1"),
    ("deviceIterations", (2.0,), AssertionError, "takes an int, not 2.0"),
    ("deviceIterations", (NAN,), AssertionError, "takes an int, not nan"),
    ("deviceIterations", (True,), AssertionError, "takes an int, not True"),
    ("deviceIterations", ("4",), AssertionError, "takes an int"),
    ("deviceIterations", (None,), AssertionError, "takes an int"),
    ("replicationFactor", (0,), ValueError, "replicationFactor must be at least 1"),
    ("replicationFactor", (1.5,), AssertionError, "replicationFactor takes an int"),
    ("inputReplicaGrouping", (1, CommGroupType.All), ValueError, "CommGroupType.All"),
    ("inputReplicaGrouping", (2, CommGroupType.Consecutive), ValueError, "do not divide 1 rep"),
    ("inputReplicaGrouping", (0, CommGroupType.Consecutive), ValueError, "at least 1"),
    ("inputReplicaGrouping", (1, "all"), AssertionError, "takes a CommGroupType"),
    ("broadcastBuffers", ("yes",), AssertionError, "takes a bool"),
    ("outputMode", (OutputMode.EveryN,), AssertionError, "positive period"),
    ("outputMode", (OutputMode.EveryN, 0), AssertionError, "positive period"),
    ("outputMode", (OutputMode.EveryN, 1.5), AssertionError, "takes an int"),
    ("outputMode", ("All",), AssertionError, "takes an OutputMode"),
    ("anchorTensor", ("a", "b", OutputMode.EveryN, None), AssertionError, "positive period"),
    ("anchorTensor", (1, "b"), AssertionError, "takes a str"),
    ("setExecutionStrategy", ("pipelined",), AssertionError, "takes an ExecutionStrategy"),
    ("setAvailableMemoryProportion", ({"0": 0.3},), AssertionError, "start with 'IPU'"),
    ("setAvailableMemoryProportion", ({"IPU0": NAN},), ValueError, "from 0 to 1"),
    ("setAvailableMemoryProportion", ({"IPU0": 1.5},), ValueError, "from 0 to 1"),
    ("setAvailableMemoryProportion", ({"IPU0": "all"},), AssertionError, "takes a number"),
    ("setAvailableMemoryProportion", (0.5,), AssertionError, "takes a dict"),
    ("randomSeed", ("1",), AssertionError, "randomSeed takes an int"),
    ("randomSeed", (1.0,), AssertionError, "randomSeed takes an int"),
    ("randomSeed", (2**64,), ValueError, "64 bits"),
    ("enableExecutableCaching", (3,), AssertionError, "takes a path"),
    ("useIpuModel", (None,), AssertionError, "takes a bool"),
    ("useIpuId", (-1,), ValueError, "at least 0"),
    ("useOfflineIpuTarget", (3,), ValueError, "IPU versions"),
    ("connectionType", (7,), AssertionError, "takes a ConnectionType"),
    ("syncPattern", (OutputMode.All,), AssertionError, "takes a SyncPattern"),
    ("enableSyntheticData", ("on",), AssertionError, "takes a bool"),
    ("modelName", (3,), AssertionError, "takes a str"),
    ("maxRepeatLogs", (-2,), ValueError, "at least 0"),
    ("updatableNamedBuffers", ("abc",), AssertionError, "list of str"),
    ("updatableNamedBuffers", ([1],), AssertionError, "takes a str"),
    ("engine", ("referense",), ValueError, "did you mean 'reference'"),
    ("engine", ("gpu",), ValueError, "'reference', 'native', 'tiered'"),
    ("engine", (None,), AssertionError, "takes a str"),
    ("strict", ("yes",), AssertionError, "takes a bool"),
]


@pytest.mark.parametrize(("setter", "arguments", "error", "fragment"), REFUSED)
def test_a_bad_value_is_refused_with_the_option_and_a_fix(
    setter: str, arguments: tuple[Any, ...], error: type[Exception], fragment: str
) -> None:
    options = Options()
    before = repr(options)

    with pytest.raises(error) as caught:
        getattr(options, setter)(*arguments)

    assert isinstance(caught.value, Error)
    assert fragment in str(caught.value)
    assert setter in str(caught.value)
    assert caught.value.fix
    assert repr(options) == before


def test_input_groups_are_checked_against_the_replicas_at_the_call() -> None:
    options = Options().replicationFactor(4).inputReplicaGrouping(2, CommGroupType.Consecutive)

    assert (options.input_group_size, options.input_groups) == (2, 2)
    with pytest.raises(ValueError, match="groups of 3 do not divide 4"):
        options.inputReplicaGrouping(3, CommGroupType.Consecutive)
    with pytest.raises(ValueError, match="groups of 8 do not divide 4"):
        options.inputReplicaGrouping(8, CommGroupType.Orthogonal)


def test_input_groups_that_no_longer_divide_the_replicas_are_noticed() -> None:
    options = Options().replicationFactor(4).inputReplicaGrouping(4, CommGroupType.Consecutive)

    options.replicationFactor(6)

    with pytest.raises(ValueError, match="groups of 4 do not divide 6"):
        _ = options.input_groups


def test_a_period_without_every_n_is_ignored_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="poptorch::python"):
        Options().outputMode(OutputMode.All, 2)

    assert "period is ignored" in caplog.text


def test_the_output_mode_is_default_until_chosen() -> None:
    options = Options()

    assert options.defaultOutputMode()
    assert not options.outputMode(OutputMode.Final).defaultOutputMode()


def test_anchors_are_recorded_with_their_mode_and_nothing_is_returned() -> None:
    options = Options()

    result = options.anchorTensor("grad", "Gradient___w")  # type: ignore[func-returns-value]
    options.anchorTensor("act", "relu:0", OutputMode.EveryN, 2)

    assert result is None
    assert options.anchored_tensors == {
        "grad": ("Gradient___w", None, 1),
        "act": ("relu:0", OutputMode.EveryN, 2),
    }


@pytest.mark.parametrize(
    "make",
    [
        PipelinedExecution,
        ShardedExecution,
        lambda: SerialPhasedExecution("a"),
        lambda: ParallelPhasedExecution("a"),
    ],
)
def test_each_of_the_four_strategies_can_be_chosen(make: Callable[[], Any]) -> None:
    strategy = make()

    assert Options().setExecutionStrategy(strategy).execution_strategy is strategy


def test_the_random_seed_seeds_torch_at_once() -> None:
    torch.manual_seed(1234)
    expected = torch.rand(3)

    Options().randomSeed(1234)

    assert torch.equal(torch.rand(3), expected)


def test_a_refused_random_seed_leaves_torch_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()

    with pytest.raises(AssertionError):
        Options().randomSeed("7")  # type: ignore[arg-type]

    assert torch.equal(torch.get_rng_state(), state)


def test_location_excludes_start_with_three_and_can_be_appended_to() -> None:
    options = Options()
    defaults = list(options.source_location_excludes)

    options.appendToLocationExcludes("mine", "yours")

    assert len(defaults) == 3
    assert options.source_location_excludes == [*defaults, "mine", "yours"]


def test_setters_chain() -> None:
    options = Options().deviceIterations(2).replicationFactor(3).strict().engine("native")

    assert (options.device_iterations, options.replication_factor) == (2, 3)
    assert (options.is_strict, options.engine_name) == (True, "native")


def test_strict_mode_runs_on_the_oracle_unless_an_engine_is_chosen() -> None:
    assert Options().strict().engine_name == "reference"
    assert Options().engine("native").strict().engine_name == "native"
    assert Options().strict().engine("tiered").engine_name == "tiered"
    assert Options().strict().enableExecutableCaching("cache").engine_name == "native"
    assert Options().strict(False).engine_name == "native"
