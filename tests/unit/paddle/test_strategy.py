"""The options of a strategy, without Paddle."""

from __future__ import annotations

from pathlib import Path

import pytest

from pantile.errors import OptionError, StoreError
from pantile.paddle import Config
from pantile.paddle.api import IpuStrategy
from pantile.paddle.strategy_options import STRATEGY_OPTIONS


def test_there_are_as_many_options_of_each_type_as_in_an_ipu_build() -> None:
    kinds = [option.type for option in STRATEGY_OPTIONS.values()]

    counts = {kind: kinds.count(kind) for kind in set(kinds)}

    assert counts == {
        "bool": 52,
        "uint64": 33,
        "string": 11,
        "double": 10,
        "vector": 4,
        "map": 5,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("is_training", True),
        ("micro_batch_size", 1),
        ("tiles_per_ipu", 4),
        ("num_buffers", 10),
        ("random_seed", 2**64 - 1),
        ("max_weight_norm", 65504.0),
        ("accl1_type", "FLOAT"),
        ("accumulation_and_replication_reduction_type", 1),
    ],
)
def test_defaults_are_those_of_an_ipu_build(name: str, value: object) -> None:
    assert IpuStrategy().get_option(name) == value


def test_an_option_is_shown_with_its_type_and_text() -> None:
    strategy = IpuStrategy()
    strategy.set_options({"loss_scaling": 2.5})

    shown = strategy._ipu_strategy.get_option("loss_scaling")

    assert shown == {"name": "loss_scaling", "type": "double", "value": 2.5, "value_s": "2.5"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such_option", 1),
        ("loss_scaling", 2),
        ("num_ipus", True),
        ("num_ipus", 1.0),
        ("is_training", 1),
        ("accl1_type", 16),
        ("auto_recomputation", 17),
        ("num_ipus", -1),
        ("batches_per_step", 0),
        ("dot_checks", ["Fwd9"]),
        ("engine_options", "text"),
        ("location_weight", {"on_moon": 1}),
        ("compilation_progress_logger", 3),
    ],
)
def test_a_wrong_name_type_or_value_is_refused_and_nothing_is_set(name: str, value: object) -> None:
    strategy = IpuStrategy()

    with pytest.raises(OptionError) as caught:
        strategy.set_options({"micro_batch_size": 7, name: value})

    assert name.partition("_")[0] in str(caught.value) and caught.value.fix
    assert strategy.get_option("micro_batch_size") == 1


def test_lists_are_appended_to_and_maps_keep_what_they_have() -> None:
    strategy = IpuStrategy()

    strategy.set_options({"dot_checks": ["Fwd0"], "engine_options": {"a": "1"}})
    strategy.set_options({"dot_checks": {"Final"}, "engine_options": {"a": "2", "b": "3"}})

    assert strategy.get_option("dot_checks") == ["Fwd0", "Final"]
    assert strategy.get_option("engine_options") == {"a": "1", "b": "3"}


def test_only_the_learning_rate_needs_no_new_compilation() -> None:
    strategy = IpuStrategy()
    strategy.need_compile = False

    strategy.set_options({"lr": 0.5})
    assert not strategy.need_compile
    strategy.set_options({"lr": 0.5, "num_ipus": 2})
    assert strategy.need_compile


def test_sharding_and_pipelining_need_each_other() -> None:
    strategy = IpuStrategy()

    with pytest.raises(RuntimeError, match="enable_manual_shard=True with num_ipus=1"):
        strategy.set_graph_config(num_ipus=1, enable_manual_shard=True)
    with pytest.raises(RuntimeError, match="without enable_manual_shard"):
        strategy.set_pipelining_config(enable_pipelining=True)
    strategy.set_graph_config(num_ipus=2, enable_manual_shard=True)
    strategy.set_pipelining_config(enable_pipelining=True, batches_per_step=4)
    assert strategy.enable_pipelining and strategy.num_ipus == 2


def test_settings_of_inference_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ipu.txt"
    file.write_text(
        "ipu_device_num,2\nipu_enable_pipelining,true\n\nipu_batches_per_step,4\n"
        "ipu_available_memory_proportion,0.5\n"
    )
    config = Config("model")

    config.load_ipu_config(file)

    assert (config.ipu.ipu_device_num, config.ipu.ipu_batches_per_step) == (2, 4)
    assert config.ipu.ipu_enable_pipelining is True
    assert config.ipu.ipu_available_memory_proportion == 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ipu_speed,9", "line 1: unknown key 'ipu_speed'"),
        ("ipu_device_num,two", "ipu_device_num='two'"),
        ("\nipu_enable_fp16,maybe", "line 2"),
        ("ipu_device_num,0", "ipu_device_num=0"),
        ("ipu_device_num,4\nipu_enable_pipelining,1", "pipeline of 4"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "ipu.txt"
    file.write_text(text)

    with pytest.raises(OptionError, match=why):
        Config("model").load_ipu_config(file)
    with pytest.raises(StoreError, match="cannot be read"):
        Config("model").load_ipu_config(tmp_path / "missing.txt")
