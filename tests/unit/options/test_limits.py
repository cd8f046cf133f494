"""How many IPUs a model takes, and what inference allows."""

from __future__ import annotations

import pytest

from pantile.errors import Error, PlacementError
from pantile.options import (
    Options,
    PipelinedExecution,
    ShardedExecution,
    check_inference_options,
    device_count,
    device_count_for,
)


@pytest.mark.parametrize(
    ("per_replica", "replicas", "count"), [(1, 1, 1), (1, 3, 3), (2, 5, 10), (2, 64, 128)]
)
def test_any_number_of_ipus_is_allowed_by_default(
    per_replica: int, replicas: int, count: int
) -> None:
    assert device_count(per_replica, replicas, strict=False) == count


@pytest.mark.parametrize(
    ("per_replica", "replicas", "count"), [(1, 1, 1), (1, 3, 4), (5, 1, 8), (2, 2, 4), (33, 1, 64)]
)
@pytest.mark.parametrize("strict", [True, False])
def test_rounding_reserves_the_next_power_of_two(
    per_replica: int, replicas: int, count: int, strict: bool
) -> None:
    assert device_count(per_replica, replicas, strict=strict, auto_round=True) == count


def test_strict_mode_refuses_what_is_not_a_power_of_two() -> None:
    with pytest.raises(PlacementError, match="use of 3 IPUs") as caught:
        device_count(3, 1, strict=True)

    assert "4" in caught.value.message
    assert "autoRoundNumIPUs" in (caught.value.fix or "")


@pytest.mark.parametrize(("per_replica", "auto_round"), [(2, False), (2, True)])
def test_strict_mode_refuses_more_than_64_ipus(per_replica: int, auto_round: bool) -> None:
    text = r"Too many IPUs requested \(128\)\. Experiments that need"

    with pytest.raises(PlacementError, match=text):
        device_count(per_replica, 64, strict=True, auto_round=auto_round)


def test_strict_mode_allows_64_ipus() -> None:
    assert device_count(4, 16, strict=True) == 64


def test_the_options_decide_the_count() -> None:
    options = Options().replicationFactor(3).strict()

    with pytest.raises(PlacementError, match="use of 3 IPUs"):
        device_count_for(options, 1)
    assert device_count_for(options.clone().autoRoundNumIPUs(), 1) == 4
    assert device_count_for(options.clone().strict(False), 1) == 3


@pytest.mark.parametrize(
    "options", [Options().useIpuModel(True), Options().useOfflineIpuTarget(ipu_version=2)]
)
def test_simulators_and_offline_targets_take_any_count(options: Options) -> None:
    assert device_count_for(options.clone().strict().replicationFactor(3), 1) == 3


def test_inference_needs_no_accumulation() -> None:
    check_inference_options(Options())


def test_inference_refuses_accumulation_and_points_pipelines_at_device_iterations() -> None:
    options = Options()
    options.Training.gradientAccumulation(2)

    with pytest.raises(Error, match="gradientAccumulation") as pipelined:
        check_inference_options(options.setExecutionStrategy(PipelinedExecution()))
    with pytest.raises(Error, match="gradientAccumulation") as sharded:
        check_inference_options(options.setExecutionStrategy(ShardedExecution()))

    assert "deviceIterations" in pipelined.value.message
    assert "deviceIterations" not in sharded.value.message
