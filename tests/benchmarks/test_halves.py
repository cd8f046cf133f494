"""The comparison of types: all engines run, and eager in float32 is what they are compared to."""

from __future__ import annotations

from benchmarks.halves import measured, table
from benchmarks.measure import Plan
from benchmarks.workloads import WORKLOADS


def test_both_types_of_both_engines_are_timed() -> None:
    found = measured(WORKLOADS["W2"], Plan.quick())

    assert len(found) == 4
    assert all(min(timing.cpu) > 0 for timing in found.values())
    assert "eager-fused, float32" in table("W2", found)
    assert table("W2", found).splitlines()[1].endswith("1.00 (1.00)")
