"""The benchmark with a neighbour: both engines run, and nothing is busy between steps."""

from __future__ import annotations

from benchmarks.crowd import _two_cores, measured, table
from benchmarks.workloads import WORKLOADS


def test_a_step_goes_on_beside_a_busy_process_and_rests_afterwards(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path))
    with _two_cores() as cores:
        found = measured(WORKLOADS["W2"], cores, seconds=0.05)

    assert set(found) == {"eager-fused", "pantile"}
    assert all(steps.free and steps.crowded for steps in found.values())
    assert found["pantile"].idle < 0.1
    assert "pantile" in table("W2", found)
