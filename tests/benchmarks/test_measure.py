"""Timing with engines whose duration is known: they move a clock of their own."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks import measure, peers


class Clock:
    """A CPU clock that only its engine moves."""

    def __init__(self, seconds_per_call: float, log: list[str], name: str) -> None:
        self.now = 0.0
        self._step = seconds_per_call
        self._log = log
        self._name = name

    def run(self, calls: int) -> None:
        self.now += calls * self._step
        self._log.append(self._name)

    def engine(self, steps: int = 1) -> peers.Engine:
        return peers.Engine(
            self.run, lambda _: np.zeros(1), steps=steps, cpu_clock=lambda: self.now
        )


def test_reports_seconds_per_step_of_the_engines_own_clock() -> None:
    engines = {"a": Clock(8.0, [], "a").engine(steps=4), "b": Clock(3.0, [], "b").engine()}

    timings = measure.interleave(engines, measure.Plan(seconds=1e-4, round_seconds=1e-5, rounds=3))

    assert timings["a"].cpu == pytest.approx([2.0] * len(timings["a"].cpu))
    assert timings["b"].cpu == pytest.approx([3.0] * len(timings["b"].cpu))
    assert len(timings["a"].cpu) == len(timings["b"].cpu) >= 3


def test_engines_take_turns_and_the_first_one_changes() -> None:
    log: list[str] = []
    engines = {name: Clock(1.0, log, name).engine() for name in "abc"}

    timings = measure.interleave(engines, measure.Plan(seconds=1e-6, round_seconds=1e-6, rounds=3))

    rounds = len(timings["a"].cpu)
    measured = "".join(log[-3 * rounds :])
    assert measured.startswith("abcbcacab")


def test_a_round_lasts_as_long_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.001, [], "a")
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)

    assert measure.calls_for(clock.engine(), 0.2) == 200


def test_waits_for_results_before_it_reads_the_clock() -> None:
    order: list[str] = []

    def clock() -> float:
        order.append("clock")
        return 0.0

    engine = peers.Engine(
        lambda calls: order.append("run"),
        lambda _: np.zeros(1),
        wait=lambda _: order.append("wait"),
        cpu_clock=clock,
    )

    measure.timed(engine, 1)

    assert order == ["clock", "run", "wait", "clock"]


def test_the_summary_of_five_numbers() -> None:
    assert measure.summary([5.0, 1.0, 3.0, 2.0, 4.0]) == {
        "min": 1.0,
        "q1": 2.0,
        "median": 3.0,
        "q3": 4.0,
    }
