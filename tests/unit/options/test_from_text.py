"""Options from JSON, from files and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pantile.enums import AutoStage, CommGroupType, OutputMode
from pantile.errors import ConfigFileError, Error, OptionError, UnknownOption
from pantile.options import Options, ShardedExecution
from pantile.options import environment as variables


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.cfg"


def test_json_sets_options_and_groups_by_their_dotted_names() -> None:
    options = Options()

    returned = options.from_json(
        """{
            "deviceIterations": 3,
            "replicationFactor": [4],
            "inputReplicaGrouping": [2, "CommGroupType.Orthogonal"],
            "outputMode": ["OutputMode.EveryN", 3],
            "Training.gradientAccumulation": 5,
            "Precision.setPartialsType": "torch.half",
            "setAvailableMemoryProportion": {"IPU0": 0.5},
            "updatableNamedBuffers": [["a", "b"]],
            "_Popart.set": ["outlineThreshold", 10.0],
            "disableModuleNamescope": [],
            "log_dir": "logs",
            "modelName": "some.name"
        }"""
    )

    assert returned is options
    assert (options.device_iterations, options.replication_factor) == (3, 4)
    assert (options.input_group_size, options.input_cgt) == (2, CommGroupType.Orthogonal)
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 3)
    assert options.Training.gradient_accumulation == 5
    assert options.Precision.partials_type is torch.float16
    assert options.available_memory_proportion == {"IPU0": 0.5}
    assert options.updatable_named_buffers == ["a", "b"]
    assert options._Popart.options["outlineThreshold"] == 10.0
    assert not options.module_namescope
    assert (options.log_dir, options.model_name) == ("logs", "some.name")


@pytest.mark.parametrize(
    ("text", "error", "fragment"),
    [
        ("{", OptionError, "not valid JSON"),
        ("[1]", AssertionError, "must be a JSON object, not list"),
        ('{"deviceIteration": 1}', UnknownOption, "did you mean"),
        ('{"Traning.gradientAccumulation": 1}', UnknownOption, "did you mean 'Training'"),
        ('{"Training.gradientAcumulation": 1}', UnknownOption, "gradient"),
        ('{"_Popart.sett": ["a", 1]}', UnknownOption, "did you mean 'set'"),
        ('{"_values": 1}', UnknownOption, "has no option '_values'"),
        ('{"__class__": 1}', UnknownOption, "has no option '__class__'"),
        ('{"clone.__globals__": 1}', UnknownOption, "__globals__"),
        ('{"Training": 1}', OptionError, "is a group of options"),
        ('{"deviceIterations": [1, 2]}', AssertionError, "too many positional"),
        ('{"deviceIterations": "four"}', AssertionError, "takes an int"),
        ('{"deviceIterations": NaN}', AssertionError, "takes an int, not nan"),
        ('{"outputMode": "OutputMode.Al"}', OptionError, "did you mean 'All'"),
        ('{"Distributed.processId": 3}', UnknownOption, "cannot be assigned"),
    ],
)
def test_json_that_makes_no_sense_is_refused(
    text: str, error: type[Exception], fragment: str
) -> None:
    with pytest.raises(error) as caught:
        Options().from_json(text)

    assert isinstance(caught.value, Error)
    assert fragment in str(caught.value)
    assert caught.value.fix


def test_a_file_sets_one_option_on_each_line(config: Path) -> None:
    config.write_text(
        """
        # a comment
        deviceIterations(3)
          replicationFactor(2)   # an inline comment
        Training.gradientAccumulation(gradient_accumulation=4)
        outputMode(poptorch.OutputMode.EveryN, output_return_period=3)
        connectionType(ConnectionType.OnDemand)
        setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
        TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        Precision.setPartialsType(torch.half).enableStochasticRounding(True)
        setAvailableMemoryProportion({"IPU0": 0.25})
        updatableNamedBuffers(["a", 'b'])
        modelName("a # b")
        log_dir = "logs"
        randomSeed(-3)
        """
    )

    options = Options()
    returned = options.loadFromFile(str(config))

    assert returned is options
    assert (options.device_iterations, options.replication_factor) == (3, 2)
    assert options.Training.gradient_accumulation == 4
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 3)
    assert options.connection_type == 1
    assert isinstance(options.execution_strategy, ShardedExecution)
    assert options.execution_strategy.auto_stage is AutoStage.AutoIncrement
    assert options.TensorLocations.location_weight == {"onChip": 0}
    assert options.Precision.partials_type is torch.float16
    assert options.Precision.stochastic_rounding
    assert options.available_memory_proportion == {"IPU0": 0.25}
    assert options.updatable_named_buffers == ["a", "b"]
    assert (options.model_name, options.log_dir) == ("a # b", "logs")
    assert options.random_seed == -3


def test_stages_can_be_written_in_a_file(config: Path) -> None:
    config.write_text('setExecutionStrategy(poptorch.PipelinedExecution(Stage("a").ipu(1), ["b"]))')

    strategy = Options().loadFromFile(config).execution_strategy  # type: ignore[arg-type]

    assert strategy.stage("a").ipu_id == 1
    assert strategy.stages[1].blocks == ("b",)


def test_a_later_file_overrides_an_earlier_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.cfg", tmp_path / "second.cfg"
    first.write_text("deviceIterations(2)\nreplicationFactor(2)")
    second.write_text("deviceIterations(5)")

    options = Options().loadFromFile(str(first)).loadFromFile(str(second))

    assert (options.device_iterations, options.replication_factor) == (5, 2)


def test_a_syntax_error_names_the_kept_line_and_changes_nothing(config: Path) -> None:
    config.write_text("# comment\n\ndeviceIterations(2)\n  replicationFactor(2\n")
    options = Options()

    with pytest.raises(ConfigFileError) as caught:
        options.loadFromFile(str(config))

    assert caught.value.message.startswith("SyntaxError at line 2 of run.cfg: ")
    assert caught.value.message.endswith("\n> options.replicationFactor(2")
    assert options.device_iterations == 1


@pytest.mark.parametrize(
    "line",
    [
        "deviceIterations(__import__('os').getpid())",
        "deviceIterations(open('/etc/passwd').read())",
        "deviceIterations((lambda: 3)())",
        "deviceIterations([x for x in (1, 2)][0])",
        "deviceIterations(*[3])",
        "deviceIterations(**{'device_iterations': 3})",
        "deviceIterations.__func__.__globals__",
        "__class__.__init__(1)",
        "clone().__class__",
        "_values.clear()",
        "deviceIterations",
        "deviceIterations(1); print(1)",
        "deviceIterations(poptorch.sys.exit())",
        "deviceIterations(torch.load('x'))",
        "modelName(f'{1 + 1}')",
        "modelName('a'.upper())",
        "modelName(poptorch.OutputMode.All.__class__.__name__)",
    ],
)
def test_a_line_that_is_more_than_a_setter_is_refused_and_not_run(config: Path, line: str) -> None:
    config.write_text(line)
    options = Options()
    before = repr(options)

    with pytest.raises(OptionError) as caught:
        options.loadFromFile(str(config))

    assert line in str(caught.value)
    assert "run.cfg" in str(caught.value)
    assert caught.value.fix
    assert repr(options) == before


def test_a_bad_value_in_a_file_names_the_file_and_the_line(config: Path) -> None:
    config.write_text("\ndeviceIterations(0)  # none\n")

    with pytest.raises(ValueError, match="at least 1") as caught:
        Options().loadFromFile(str(config))

    assert isinstance(caught.value, Error)
    assert caught.value.location == "run.cfg: deviceIterations(0)  # none"


def test_a_file_that_is_not_text_is_refused(config: Path) -> None:
    config.write_bytes(b"\xff\xfe\x00deviceIterations(2)")

    with pytest.raises(ConfigFileError, match=r"run\.cfg is not a text file"):
        Options().loadFromFile(str(config))


def test_a_null_byte_in_a_line_is_a_syntax_error(config: Path) -> None:
    config.write_bytes(b"deviceIterations(2)\x00")

    with pytest.raises(ConfigFileError, match=r"SyntaxError at line 1 of run\.cfg"):
        Options().loadFromFile(str(config))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        Options().loadFromFile(str(tmp_path / "absent.cfg"))


def test_the_environment_gives_the_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/some/cache")
    assert Options().cache_path == "/some/cache"

    monkeypatch.setenv("POPTORCH_CACHE_DIR", "")
    assert Options().cache_path is None


def test_the_environment_gives_default_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 6}')

    options = Options()

    assert options.device_iterations == 6
    assert options.deviceIterations(2).device_iterations == 2


def test_bad_default_options_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIteration": 6}')

    with pytest.raises(UnknownOption, match="POPTORCH_DEFAULT_OPTIONS"):
        Options()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_the_environment_switches_strict_mode(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("POPTORCH_STRICT", value)

    assert Options().is_strict is expected
    assert Options().strict(not expected).is_strict is not expected


def test_a_switch_that_is_neither_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_STRICT", "yes")

    with pytest.raises(OptionError, match="POPTORCH_STRICT is 'yes'"):
        Options()


def test_the_environment_gives_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_ENGINE", "native")

    assert Options().engine_name == "native"
    assert Options().engine("reference").engine_name == "reference"


def test_an_unknown_engine_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_ENGINE", "nativ")

    with pytest.raises(OptionError, match=r"PANTILE_ENGINE(.|\n)*did you mean 'native'"):
        Options()


@pytest.mark.parametrize("variable", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_the_script_wins_over_the_environment_about_the_simulator(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")

    assert Options().uses_ipu_model
    assert not Options().useIpuModel(False).uses_ipu_model


@pytest.mark.parametrize(("name", "version"), [("", 2), ("ipu1", 1), ("ipu2", 2), ("ipu21", 21)])
def test_the_environment_gives_the_simulated_version(
    monkeypatch: pytest.MonkeyPatch, name: str, version: int
) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", name)

    assert variables.ipu_model_version() == version
