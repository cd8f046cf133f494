"""Reading, assigning, freezing and copying options."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pantile.enums import OutputMode, ReductionType
from pantile.errors import Error, FrozenOptions, UnknownOption
from pantile.options import Options, PipelinedExecution, Stage, TensorLocationSettings


def test_a_value_can_be_assigned() -> None:
    options = Options()

    options.replication_factor = 4
    options.output_mode = OutputMode.All
    options.Training.gradient_accumulation = 8

    assert options.replication_factor == 4
    assert options.output_mode is OutputMode.All
    assert options.Training.gradient_accumulation == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replication_factor", "4"),
        ("replication_factor", 4.0),
        ("log_dir", 3),
        ("broadcast_buffers", "no"),
        ("output_mode", "All"),
        ("anchored_tensors", []),
    ],
)
def test_an_assigned_value_must_be_of_the_old_type(name: str, value: object) -> None:
    with pytest.raises(AssertionError, match="takes a"):
        setattr(Options(), name, value)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("device_iteration", "did you mean 'device_iterations'"),
        ("deviceIteration", "did you mean 'device_iterations'|did you mean 'deviceIterations'"),
        ("replicationfactor", "did you mean 'replicationFactor'"),
        ("anchorMode", "it is called 'outputMode' now"),
        ("zzz", "lists the options"),
    ],
)
def test_an_unknown_option_is_an_attribute_error_with_a_suggestion(name: str, fix: str) -> None:
    options = Options()

    assert not hasattr(options, name)
    with pytest.raises(UnknownOption, match=fix) as read:
        getattr(options, name)
    with pytest.raises(UnknownOption, match=fix):
        setattr(options, name, 1)
    assert isinstance(read.value, AttributeError)
    assert name in read.value.message


def test_assigning_over_a_setter_says_to_call_it() -> None:
    with pytest.raises(AttributeError, match=r"options\.deviceIterations\(\.\.\.\)"):
        Options().deviceIterations = 4  # type: ignore[method-assign, assignment]


def test_assigning_over_a_group_is_refused() -> None:
    with pytest.raises(AttributeError, match="Training cannot be assigned to"):
        Options().Training = Options().Training  # type: ignore[misc]


def test_an_option_not_yet_set_names_its_setter() -> None:
    with pytest.raises(AttributeError, match=r"set it with options\.modelName"):
        Options().model_name = "bert"


def test_set_refuses_an_unknown_keyword_and_stores_nothing() -> None:
    options = Options()

    with pytest.raises(AssertionError, match="did you mean 'device_iterations'"):
        options.set(replication_factor=2, device_iteration=3)

    assert options.replication_factor == 1


def test_create_or_set_makes_a_value_that_then_keeps_its_type() -> None:
    options = Options().createOrSet(mine=3)

    assert options.exists("mine")
    assert options.mine == 3
    options.mine = 4
    with pytest.raises(AssertionError, match="mine takes an int"):
        options.mine = "five"
    assert not options.deleteIfExists("mine").exists("mine")
    options.deleteIfExists("mine")


CHANGES: list[Callable[[Options], Any]] = [
    lambda o: o.deviceIterations(2),
    lambda o: o.anchorTensor("a", "b"),
    lambda o: o.randomSeed(1),
    lambda o: o.enableExecutableCaching("x"),
    lambda o: o.enableProfiling(),
    lambda o: o.logCycleCount(True),
    lambda o: o.set(device_iterations=2),
    lambda o: o.createOrSet(mine=2),
    lambda o: o.deleteIfExists("log_dir"),
    lambda o: o.from_json('{"deviceIterations": 2}'),
    lambda o: setattr(o, "device_iterations", 2),
    lambda o: setattr(o, "no_such_option", 2),
    lambda o: o.Training.gradientAccumulation(2),
    lambda o: o.Training.setAutomaticLossScaling(True),
    lambda o: o.Training.setConvolutionDithering(True),
    lambda o: o.Precision.enableStochasticRounding(True),
    lambda o: o.Precision.enableFloatingPointExceptions(True),
    lambda o: o.Precision.setPartialsType(torch.half),
    lambda o: o.Precision.halfFloatCasting(None),
    lambda o: o.Jit.traceModel(False),
    lambda o: o.Distributed.configureProcessId(0, 2),
    lambda o: o.Distributed.disable(),
    lambda o: o.TensorLocations.setWeightLocation(TensorLocationSettings()),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o._Popart.set("key", 1),
    lambda o: o._Popart.setEngineOptions({}),
    lambda o: o._Popart.setPatterns({}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_frozen_options_refuse_every_change(change: Callable[[Options], Any]) -> None:
    options = Options()
    options._freeze()
    before = repr(options)

    with pytest.raises(AttributeError, match="Can't modify frozen Options") as caught:
        change(options)

    assert isinstance(caught.value, FrozenOptions)
    assert "clone()" in (caught.value.fix or "")
    assert repr(options) == before


def test_a_frozen_random_seed_does_not_seed_torch() -> None:
    options = Options()
    options._freeze()
    state = torch.get_rng_state()

    with pytest.raises(FrozenOptions):
        options.randomSeed(5)

    assert torch.equal(torch.get_rng_state(), state)


def test_check_is_frozen_raises_only_when_frozen() -> None:
    options = Options()
    options.checkIsFrozen()
    options._freeze()

    with pytest.raises(AttributeError, match="frozen"):
        options.checkIsFrozen()

    options._unfreeze()
    options.Training.gradientAccumulation(2)


@pytest.mark.parametrize("duplicate", [Options.clone, copy.deepcopy, copy.copy])
def test_a_copy_is_unfrozen_and_shares_nothing(duplicate: Callable[[Options], Options]) -> None:
    original = Options().deviceIterations(3)
    original.setExecutionStrategy(PipelinedExecution(Stage("a")))
    original.Training.accumulationAndReplicationReductionType(ReductionType.Sum)
    original._freeze()

    twin = duplicate(original)

    assert repr(twin) == repr(original)
    twin.deviceIterations(5).anchorTensor("a", "b")
    twin.Training.setAutomaticLossScaling(True)
    twin.execution_strategy.stage("a").ipu(3)
    twin._Popart.options["raw"] = 1
    assert original.device_iterations == 3
    assert original.anchored_tensors == {}
    assert original.execution_strategy.stage("a").ipu_id is None
    assert not original.Training.automatic_loss_scaling
    assert "raw" not in original._Popart.options
    assert twin.Training.automatic_loss_scaling
    with pytest.raises(FrozenOptions):
        original.deviceIterations(4)


def test_options_survive_pickling_frozen() -> None:
    options = Options().replicationFactor(2).randomSeed(9)
    options._freeze()

    twin = pickle.loads(pickle.dumps(options))

    assert repr(twin) == repr(options)
    with pytest.raises(FrozenOptions):
        twin.replicationFactor(3)


def test_two_options_do_not_share_their_defaults() -> None:
    Options().available_memory_proportion["IPU0"] = 0.5

    assert Options().available_memory_proportion == {}


def test_the_repr_lists_every_value() -> None:
    options = Options().replicationFactor(4)
    options.Training.gradientAccumulation(6)

    shown = repr(options)

    assert shown.startswith("Options(")
    assert "replication_factor=4" in shown
    assert "gradient_accumulation=6" in shown
    assert "OutputMode.Default" in shown
    for group in ("Training", "Precision", "Jit", "Distributed", "TensorLocations", "_Popart"):
        assert f"{group}=" in shown


def test_to_dict_is_flat_with_enums_as_numbers() -> None:
    options = Options().replicationFactor(2).outputMode(OutputMode.All)
    options.anchorTensor("a", "b", OutputMode.Sum)

    flat = options.toDict()

    assert flat["replication_factor"] == 2
    assert flat["gradient_accumulation"] == 1
    assert flat["execution_mode"] == 0
    assert type(flat["output_mode"]) is int
    assert flat["anchored_tensors"] == {"a": ["b", 3, 1]}


def test_to_dict_needs_an_output_mode() -> None:
    with pytest.raises(AssertionError, match="still Default") as caught:
        Options().toDict()

    assert isinstance(caught.value, Error)


def test_dir_lists_values_and_setters() -> None:
    assert {"device_iterations", "deviceIterations", "Training"} <= set(dir(Options()))
