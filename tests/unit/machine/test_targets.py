"""The machines, against their datasheets."""

from __future__ import annotations

import pytest

from pantile.errors import Error
from pantile.machine.targets import (
    BOW,
    C600,
    GC2,
    GC200,
    SOURCES,
    adjusted,
    assumptions,
    constants_from,
    pod,
    with_constants,
)


@pytest.mark.parametrize(
    ("chip", "half", "single"),
    [
        (GC2, 124.5e12, 31.1e12),
        (GC200, 249.65e12, 62.4e12),
        (BOW, 348.6e12, 87.15e12),
        (C600, 280e12, 70e12),
    ],
)
def test_peaks_are_those_of_the_datasheets(chip, half, single):
    assert chip.peak_flops("float16") == pytest.approx(half, rel=0.02)
    assert chip.peak_flops("float32") == pytest.approx(single, rel=0.02)


def test_a_mk2_has_897_mebibytes():
    assert GC200.memory_bytes == 897 * 2**20


def test_every_constant_has_a_source_and_assumed_ones_come_first():
    rows = assumptions(pod(BOW, 16)) + assumptions(BOW)

    assert {name for name, _, _ in rows} == set(SOURCES)
    marks = [fact.assumed for _, _, fact in assumptions(BOW)]
    assert marks == sorted(marks, reverse=True)
    assert any(marks)


def test_a_constant_can_be_changed_and_an_unknown_one_cannot():
    assert adjusted(BOW, {"sync_cycles": 300}).sync_cycles == 300
    assert adjusted(BOW, {"tiles": 100.0}).tiles == 100
    with pytest.raises(Error, match="no constant 'tilles'"):
        adjusted(BOW, {"tilles": 1})


def test_a_pod_has_a_power_of_two():
    with pytest.raises(Error, match="pod of 12 IPUs"):
        pod(BOW, 12)


def test_constants_of_a_pod_and_of_its_chip_are_changed_together():
    changes = constants_from("sync_cycles=300, ring_bytes_per_second=48e9")

    system = with_constants(pod(BOW, 16), changes)

    assert (system.chip.sync_cycles, system.ring_bytes_per_second) == (300, 48e9)
    assert system.chip.tiles == BOW.tiles
    with pytest.raises(Error, match="no constant 'speed'"):
        with_constants(pod(BOW, 16), {"speed": 2})
    with pytest.raises(Error, match="sync_cycles"):
        constants_from("sync_cycles")
