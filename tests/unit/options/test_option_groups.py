"""Training, Precision, Jit, Distributed, TensorLocations and _Popart, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pantile import options as options_package
from pantile.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from pantile.errors import Error
from pantile.options import Options, TensorLocationSettings


def test_groups_have_their_specified_defaults() -> None:
    options = Options()

    assert options.Training.gradient_accumulation == 1
    assert options.Training.accumulation_and_replication_reduction_type == ReductionType.Mean
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == MeanReductionStrategy.Post
    assert not options.Training.automatic_loss_scaling
    assert not options.Precision.floating_point_exceptions
    assert not options.Precision.stochastic_rounding
    assert options.Precision.partials_type is torch.float32
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    assert options.TensorLocations.location_weight == {}
    assert options._Popart.options == {
        "instrumentWithHardwareCycleCounter": False,
        "rearrangeAnchorsOnHost": False,
    }


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("Training", "_TrainingOptions"),
        ("Precision", "_PrecisionOptions"),
        ("Jit", "_JitOptions"),
        ("Distributed", "_DistributedOptions"),
        ("TensorLocations", "_TensorLocationOptions"),
        ("_Popart", "_PopartOptions"),
    ],
)
def test_the_private_class_names_are_importable(group: str, name: str) -> None:
    assert type(getattr(Options(), group)) is getattr(options_package, name)


ON = [
    ("Training", "gradientAccumulation", (4,), "gradient_accumulation", 4),
    (
        "Training",
        "accumulationAndReplicationReductionType",
        (ReductionType.Sum,),
        "accumulation_and_replication_reduction_type",
        ReductionType.Sum,
    ),
    (
        "Training",
        "setMeanAccumulationAndReplicationReductionStrategy",
        (MeanReductionStrategy.Running,),
        "meanAccumulationAndReplicationReductionStrategy",
        MeanReductionStrategy.Running,
    ),
    ("Training", "setAutomaticLossScaling", (True,), "automatic_loss_scaling", True),
    ("Precision", "enableFloatingPointExceptions", (True,), "floating_point_exceptions", True),
    ("Precision", "enableStochasticRounding", (True,), "stochastic_rounding", True),
    ("Precision", "enableStochasticRounding", (1,), "stochastic_rounding", True),
    ("Precision", "setPartialsType", (torch.half,), "partials_type", torch.float16),
    ("Precision", "setPartialsType", (torch.float,), "partials_type", torch.float32),
    ("Distributed", "configureProcessId", (1, 3), "processId", 1),
    ("Distributed", "configureProcessId", (1, 3), "numProcesses", 3),
    ("TensorLocations", "numIOTiles", (64,), "num_io_tiles", 64),
]


@pytest.mark.parametrize(("group", "setter", "arguments", "name", "value"), ON)
def test_a_group_setter_stores_its_value_and_returns_the_group(
    group: str, setter: str, arguments: tuple[Any, ...], name: str, value: object
) -> None:
    owner = getattr(Options(), group)

    returned = getattr(owner, setter)(*arguments)

    assert returned is owner
    assert getattr(owner, name) == value


REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("Training.gradientAccumulation", (0,), ValueError, "at least 1"),
    ("Training.gradientAccumulation", (2.0,), AssertionError, "takes an int"),
    ("Training.gradientAccumulation", (float("nan"),), AssertionError, "takes an int"),
    ("Training.gradientAccumulation", (True,), AssertionError, "takes an int"),
    (
        "Training.accumulationAndReplicationReductionType",
        (ReductionType.NoReduction,),
        ValueError,
        "ReductionType.Sum or ReductionType.Mean",
    ),
    ("Training.accumulationAndReplicationReductionType", ("mean",), ValueError, "'mean'"),
    (
        "Training.setMeanAccumulationAndReplicationReductionStrategy",
        ("post",),
        AssertionError,
        "takes a MeanReductionStrategy",
    ),
    ("Training.setAutomaticLossScaling", ("on",), AssertionError, "takes a bool"),
    ("Precision.enableFloatingPointExceptions", (1,), AssertionError, "takes a bool"),
    ("Precision.enableStochasticRounding", (None,), AssertionError, "takes a bool"),
    ("Precision.setPartialsType", (torch.float64,), ValueError, "torch.float or torch.half"),
    ("Precision.setPartialsType", ("half",), ValueError, "torch.float or torch.half"),
    ("Precision.runningStatisticsAlwaysFloat", (1,), ValueError, "takes a bool"),
    ("Jit.traceModel", (True,), ValueError, "no longer exists"),
    ("Distributed.configureProcessId", (3, 3), ValueError, "not one of 3"),
    ("Distributed.configureProcessId", (-1, 3), ValueError, "at least 0"),
    ("Distributed.configureProcessId", (0, 0), ValueError, "at least 1"),
    ("Distributed.setEnvVarNames", (1, 2), AssertionError, "takes a str"),
    ("TensorLocations.setWeightLocation", ({},), AssertionError, "takes a TensorLocationSettings"),
    ("TensorLocations.setActivationLocation", (None,), AssertionError, "TensorLocationSettings"),
    ("TensorLocations.setOptimizerLocation", (1,), AssertionError, "TensorLocationSettings"),
    ("TensorLocations.setAccumulatorLocation", ("x",), AssertionError, "TensorLocationSettings"),
    ("TensorLocations.numIOTiles", (33,), AssertionError, "even number between 32 and 192"),
    ("TensorLocations.numIOTiles", (30,), AssertionError, "even number between 32 and 192"),
    ("TensorLocations.numIOTiles", (194,), AssertionError, "even number between 32 and 192"),
    ("TensorLocations.numIOTiles", ("32",), AssertionError, "takes an int"),
    ("_Popart.set", (3, 4), AssertionError, "takes a str"),
    ("_Popart.setEngineOptions", ([],), AssertionError, "takes a dict"),
    ("_Popart.setPatterns", ("all",), AssertionError, "takes a dict"),
]


@pytest.mark.parametrize(("accessor", "arguments", "error", "fragment"), REFUSED)
def test_a_group_refuses_a_bad_value_with_the_option_and_a_fix(
    accessor: str, arguments: tuple[Any, ...], error: type[Exception], fragment: str
) -> None:
    options = Options()
    before = repr(options)
    group, setter = accessor.split(".")

    with pytest.raises(error) as caught:
        getattr(getattr(options, group), setter)(*arguments)

    assert isinstance(caught.value, Error)
    assert fragment in str(caught.value)
    assert accessor in str(caught.value)
    assert caught.value.fix
    assert repr(options) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.Precision.halfFloatCasting(HalfFloatCastingBehavior.FloatDowncastToHalf),
        lambda o: o.Precision.runningStatisticsAlwaysFloat(True),
        lambda o: o.Precision.autocastEnabled(True),
        lambda o: o.Precision.autocastPolicy(None),
        lambda o: o.Jit.traceModel(False),
    ],
)
def test_a_deprecated_option_only_warns(
    call: Callable[[Options], Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = Options()
    before = repr(options)

    with caplog.at_level("WARNING", logger="poptorch::python"):
        call(options)

    assert "deprecated" in caplog.text
    assert repr(options) == before


def test_an_unknown_option_in_a_group_is_an_attribute_error_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="did you mean 'gradientAccumulation'"):
        _ = Options().Training.gradientAccumulations
    with pytest.raises(AttributeError, match="did you mean 'gradient_accumulation'"):
        Options().Training.gradient_accumulations = 3


def test_automatic_loss_scaling_is_the_raw_setting_of_the_old_backend() -> None:
    options = Options()

    options.Training.setAutomaticLossScaling(True)

    assert options._Popart.options["automaticLossScalingSettings.enabled"] is True


def test_stochastic_rounding_set_by_its_raw_name_is_seen() -> None:
    options = Options()

    options._Popart.set("enableStochasticRounding", True)

    assert options.Precision.stochastic_rounding


def test_dithering_and_partials_do_not_overwrite_each_other() -> None:
    options = Options()

    options.Training.setConvolutionDithering(True)
    options.Precision.setPartialsType(torch.half)

    assert options._Popart.options["convolutionOptions"] == {
        "enableConvolutionDithering": "true",
        "partialsType": "half",
    }


def test_engine_options_add_up_with_profiling() -> None:
    options = Options().enableProfiling("reports")

    options._Popart.setEngineOptions({"debug.verify": "true"})

    assert options.profile_dir == "reports"
    assert options._Popart.options["engineOptions"]["debug.verify"] == "true"


def test_patterns_are_kept_with_their_level() -> None:
    popart = Options()._Popart

    assert popart.setPatterns({"TiedGather": True}) is popart
    assert popart.options["patterns"] == {"TiedGather": True}
    assert popart.options["patterns_level"] == 2


CLIENT_KEYS = [
    ("accumulateOuterFragmentSettings.schedule", 2),
    ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"]),
    ("disableGradAccumulationTensorStreams", True),
    ("outlineThreshold", 10.0),
    ("saveInitializersToFile", "weights.onnx"),
    ("autoRecomputation", 3),
    ("replicatedCollectivesSettings.prepareScheduleForMergingCollectives", True),
    ("virtualGraphMode", 1),
]


@pytest.mark.parametrize(("key", "value"), CLIENT_KEYS)
def test_a_raw_key_that_clients_use_is_accepted(key: str, value: object) -> None:
    popart = Options()._Popart

    assert popart.set(key, value) is popart
    assert popart.options[key] == value


def test_the_process_is_read_from_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")

    distributed = Options().Distributed

    assert (distributed.processId, distributed.numProcesses) == (2, 4)
    assert distributed.disable() is distributed
    assert (distributed.processId, distributed.numProcesses) == (0, 1)


def test_the_process_is_read_from_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "7")

    distributed = Options().Distributed.setEnvVarNames("WORLD_SIZE", "RANK")

    assert (distributed.processId, distributed.numProcesses) == (7, 8)


def test_a_process_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "two")

    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_SIZE is 'two'"):
        Options()


def test_the_process_id_is_read_only() -> None:
    with pytest.raises(AttributeError, match="cannot be assigned"):
        Options().Distributed.processId = 3  # type: ignore[misc]


LOCATIONS = [
    ("minElementsForOffChip", (5,), {"minElementsForOffChip": 5}),
    (
        "minElementsForReplicatedTensorSharding",
        (6,),
        {"minElementsForReplicatedTensorSharding": 6},
    ),
    ("useOnChipStorage", (), {"onChip": 1}),
    ("useOnChipStorage", (False,), {"onChip": 0}),
    ("useOnChipStorage", (None,), {}),
    ("useReplicatedTensorSharding", (), {"useReplicatedTensorSharding": 1}),
    ("useIOTilesToLoad", (False,), {"useIOTilesToLoad": 0}),
    ("useIOTilesToStore", (), {"useIOTilesToStore": 1}),
]


@pytest.mark.parametrize(("setter", "arguments", "stored"), LOCATIONS)
def test_a_tensor_location_is_stored_as_ints(
    setter: str, arguments: tuple[Any, ...], stored: dict[str, int]
) -> None:
    settings = TensorLocationSettings()

    assert getattr(settings, setter)(*arguments) is settings
    assert settings.toDict() == stored
    assert all(type(value) is int for value in settings.toDict().values())


@pytest.mark.parametrize(
    ("setter", "value"),
    [
        ("minElementsForOffChip", 1.5),
        ("minElementsForReplicatedTensorSharding", "many"),
        ("useOnChipStorage", 1),
        ("useReplicatedTensorSharding", None),
        ("useIOTilesToLoad", 0),
        ("useIOTilesToStore", "yes"),
    ],
)
def test_a_tensor_location_of_a_wrong_type_is_refused(setter: str, value: object) -> None:
    with pytest.raises(AssertionError, match=f"TensorLocationSettings.{setter} takes"):
        getattr(TensorLocationSettings(), setter)(value)


@pytest.mark.parametrize("kind", ["Activation", "Weight", "Optimizer", "Accumulator"])
def test_a_location_is_copied_into_the_options(kind: str) -> None:
    locations = Options().TensorLocations
    settings = TensorLocationSettings().useOnChipStorage(False)

    returned = getattr(locations, f"set{kind}Location")(settings)
    settings.useIOTilesToLoad()

    assert returned is locations
    assert getattr(locations, f"location_{kind.lower()}") == {"onChip": 0}
