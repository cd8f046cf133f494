"""Ratios, bars and merged results from records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bars, child, measure, ratios, report, results


def record(peer: str, cpu: list[float], wall: list[float], **more: Any) -> dict[str, Any]:
    family = "eager" if peer.startswith("eager") else peer.split("-")[0]
    clocks = {
        name: {**measure.summary(values), "rounds": values}
        for name, values in (("cpu", cpu), ("wall", wall))
    }
    about = {"workload": "W2", "rows": 16, "threads": 1, "peer": peer, "family": family}
    return {**about, **clocks, **more}


def test_one_thread_compares_cpu_time_and_jax_by_wall_time() -> None:
    ours = record("pantile", cpu=[1.0, 2.0], wall=[10.0, 20.0])
    eager = record("eager", cpu=[4.0, 6.0], wall=[99.0, 99.0])
    jax = record("jax", cpu=[2.0, 8.0], wall=[30.0, 30.0])

    (row,) = ratios.table("train", [ours, eager, jax])

    assert row.ratios["eager"].by_min == 4.0
    assert row.ratios["jax"].by_min == 3.0
    assert row.ratios["jax, CPU"].by_min == 2.0


def test_several_threads_compare_wall_time() -> None:
    ours = record("pantile", cpu=[1.0, 1.0], wall=[10.0, 10.0], threads=2)
    eager = record("eager", cpu=[4.0, 4.0], wall=[50.0, 50.0], threads=2)

    (row,) = ratios.table("train", [ours, eager])

    assert row.ratios["eager"].by_median == 5.0


def test_eager_is_its_fastest_variant() -> None:
    ours = record("pantile", cpu=[1.0, 1.0], wall=[1.0, 1.0])
    slow = record("eager", cpu=[4.0, 4.0], wall=[4.0, 4.0])
    fast = record("eager-fused", cpu=[3.0, 3.0], wall=[3.0, 3.0])

    (row,) = ratios.table("train", [ours, slow, fast])

    assert row.ratios["eager"].peer == "eager-fused"
    assert row.ratios["eager"].by_min == 3.0


def test_a_scan_is_compared_with_as_many_steps_a_call() -> None:
    one = record("pantile", cpu=[5.0, 5.0], wall=[5.0, 5.0])
    eight = record("pantile-d8", cpu=[2.0, 2.0], wall=[2.0, 2.0])
    scan = record("jax-scan8", cpu=[6.0, 6.0], wall=[6.0, 6.0])

    (row,) = ratios.table("train", [one, eight, scan])

    assert row.ratios["jax-scan8"].by_min == 3.0


def test_the_spread_is_that_of_ratios_within_rounds() -> None:
    ours = record("pantile", cpu=[1.0, 2.0, 4.0], wall=[1.0, 1.0, 1.0])
    eager = record("eager", cpu=[3.0, 6.0, 12.0], wall=[1.0, 1.0, 1.0])

    ratio = ratios.table("train", [ours, eager])[0].ratios["eager"]

    assert (ratio.q1, ratio.by_median, ratio.q3) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("measured", "reached"), [(5.4, "missed"), (5.5, "first"), (12.0, "stretch")]
)
def test_a_bar_is_reached_from_its_value_on(measured: float, reached: str) -> None:
    ours = record("pantile", cpu=[1.0, 1.0], wall=[1.0, 1.0])
    eager = record("eager", cpu=[measured, measured], wall=[1.0, 1.0])

    (verdict,) = bars.of_training(ratios.table("train", [ours, eager]))

    assert verdict.reached == reached


def test_a_host_time_below_zero_is_unclear_and_not_a_success() -> None:
    found = {"workload": "W2", "way": "intercept", "cpu": {"host_seconds": -1e-6}}

    (verdict,) = bars.of_overhead([found])

    assert verdict.reached == "unclear"


def test_a_task_measured_again_replaces_its_records_only() -> None:
    found: dict[str, Any] = {"about": {"date": "2026-01-02"}, "train": []}
    first = child.Task("train", "W2", 1, ("eager",))
    other = child.Task("train", "W2", 2, ("eager",))
    results.add(found, first, [{"workload": "W2", "threads": 1, "peer": "old"}])
    results.add(found, other, [{"workload": "W2", "threads": 2, "peer": "kept"}])

    results.add(found, first, [{"workload": "W2", "threads": 1, "peer": "new"}])

    assert [record["peer"] for record in found["train"]] == ["kept", "new"]


def test_a_failure_is_in_the_report() -> None:
    about = {
        "date": "2026-01-02",
        "machine": {"cpu": "x", "cores": 2},
        "versions": {},
        "engine": "native",
        "quick": False,
    }
    failed = {"workload": "W4", "threads": 1, "peer": "jax", "error": "MemoryError: none left"}
    found = {"about": about, **{kind: [] for kind in results.KINDS}, "train": [failed]}

    assert "| train W4, 1 | jax | error: MemoryError: none left |" in report.markdown(found)
