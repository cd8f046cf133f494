"""Composition of stages, replicas and wires, against the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pantile.machine.communication import all_reduce_seconds, pipeline_copy_seconds
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.targets import BOW, GC200, pod
from pantile.machine.timing import Configuration, time_of
from pantile.machine.units import Unit

STAGES = [[Unit("a", forward=1e6, backward=2e6)], [Unit("b", forward=2e6, backward=4e6)]]
BASE = Configuration(pod(BOW, 2), micro_batch=4, accumulation=10, optimizer=OptimizerModel("none"))


def test_the_slowest_stage_paces_the_pipeline():
    timing = time_of(STAGES, BASE)

    sync = BOW.global_sync_cycles / BOW.clock_hz
    assert timing.cycles == 10 + 2
    assert timing.seconds == pytest.approx(12 * (6e6 / BOW.clock_hz + sync))
    assert timing.bubble == pytest.approx(2 / 12)
    assert timing.balance == pytest.approx((3 + 6) / 2 / 6)
    assert timing.samples_per_second == pytest.approx(40 / timing.seconds)


def test_recomputation_runs_forward_again_but_not_behind_the_last_checkpoint():
    two = [Unit("layers.0", forward=3e6), Unit("layers.1", forward=2e6)]
    stages = [STAGES[0], two]

    stage = time_of(stages, replace(BASE, recompute="stage")).stages
    layer = time_of(stages, replace(BASE, recompute="layer")).stages
    alone = time_of([two], replace(BASE, recompute="layer")).stages

    assert [s.recompute for s in stage] == [pytest.approx(1e6 / BOW.clock_hz), 0.0]
    assert layer[1].recompute == pytest.approx(3e6 / BOW.clock_hz)
    assert alone[0].recompute == pytest.approx(5e6 / BOW.clock_hz)


def test_inference_has_no_backward_and_fills_once():
    timing = time_of(STAGES, replace(BASE, training=False))

    assert timing.cycles == 10 + 1
    assert [s.backward for s in timing.stages] == [0.0, 0.0]


def test_a_faster_clock_is_faster_by_its_ratio():
    fast = time_of([STAGES[0]], BASE)
    slow = time_of([STAGES[0]], replace(BASE, system=pod(GC200, 2)))

    assert fast.samples_per_second / slow.samples_per_second == pytest.approx(1.85 / 1.325)


def test_a_ring_moves_twice_the_bytes_less_one_share():
    system = replace(pod(BOW, 16), collective_latency_seconds=0.0)
    wire = system.link_bytes_per_second * system.link_efficiency

    assert all_reduce_seconds(system, 1e9, 1) == 0.0
    assert all_reduce_seconds(system, 1e9, 4) == pytest.approx(2 * 3 / 4 * 1e9 / wire)
    out = system.ring_bytes_per_second * system.link_efficiency
    assert all_reduce_seconds(system, 1e9, 8) == pytest.approx(2 * 7 / 8 * 1e9 / out)
    assert pipeline_copy_seconds(system, 1e6) == pytest.approx(1e6 / wire)


def test_merged_gradients_wait_for_fewer_messages():
    system = pod(BOW, 16)
    merged = replace(system, collective_buffer_bytes=50e6)

    apart, together = (all_reduce_seconds(s, 120e6, 16, 1, 160) for s in (system, merged))

    assert apart - together == pytest.approx((160 - 3) * 4 * system.collective_latency_seconds)


def test_beyond_64_ipus_gateways_add_their_time():
    system = replace(pod(BOW, 256), collective_latency_seconds=0.0)

    inside, across = (all_reduce_seconds(system, 1e8, r) for r in (64, 256))

    gateway = system.gateway_bytes_per_second * system.gateway_efficiency
    assert across - inside == pytest.approx(2 * 3 / 4 * 1e8 / gateway)


def test_a_slow_host_holds_the_pipeline_up():
    fed = [[replace(STAGES[0][0], input_bytes=10**9)]]

    timing = time_of(fed, BASE)

    assert timing.seconds >= 10 * 1e9 / BASE.system.host_bytes_per_second_per_ipu
