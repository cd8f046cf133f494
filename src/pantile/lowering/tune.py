"""Which way to compile a program is fastest here: a few short runs decide, and it is recorded.

    lowering   our own kernels, if there is a rule for every operator; else Inductor's
    layout     only Inductor's programs with convolutions: its choice of memory layout, on or off
    threads    one, or all that torch may use; more threads must earn their keep

Timing runs on copies of the inputs: the state of the model is not touched. A program whose runs the
user would notice, because it prints or calls Python, is not timed, and with `PANTILE_TUNE=0` none
is: no change of layout, all threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pantile.errors import Error
from pantile.logging import logger
from pantile.lowering.load import NativeProgram, NativeRun
from pantile.lowering.prepare import Prepared
from pantile.lowering.torch_threads import torch_threads
from pantile.program.effects import is_noticed

Samples = Callable[[], Sequence[torch.Tensor]]
"""Makes values for the inputs of a program, to time it with."""

_BUDGET_SECONDS = 0.06
_MOST_RUNS = 50
_LONG_SECONDS = 0.05
"""Of a run that is not repeated."""
_WORTH = 0.93
"""More threads are taken if the time drops to this part or below."""
_SHORT_SECONDS = 3e-4
"""Of a program that is over before threads can help."""
_MORE_TRIES, _PAUSE_SECONDS = 2, 0.03
"""For threads that did not help a longer program, and what may pass meanwhile."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A compiled program, how it was compiled, and what was measured."""

    how: Mapping[str, Any]
    code: bytes
    calls: Sequence[Mapping[str, Any]] = ()
    threads: int = 1
    microseconds: Mapping[str, float] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """For the cache entry."""
        return {
            **self.how,
            "threads": self.threads,
            "microseconds": dict(self.microseconds),
            "calls": [dict(call) for call in self.calls],
        }


def is_on() -> bool:
    """May programs be timed?"""
    return os.environ.get("PANTILE_TUNE") != "0"


def may_be_tried(prepared: Prepared) -> bool:
    """Would nobody notice a run on made-up values?"""
    program = prepared.program
    return not any(is_noticed(node, program.subgraphs) for node in program.graph.nodes)


def fastest(
    choices: Sequence[Choice],
    prepared: Prepared,
    values: Sequence[torch.Tensor] | None,
    threads: int,
) -> Choice:
    """The choice that runs a program with these values in the shortest time."""
    if values is None:
        return replace(choices[0], threads=threads)
    try:
        several = len(choices) > 1
        timed = [_timed(choice, prepared, values, threads, decides=several) for choice in choices]
    except (Error, RuntimeError, IndexError, ValueError) as error:
        # Labels out of range, for example: the run itself will say so, with the user's line.
        logger.debug("the program fails on the samples, nothing was timed: %s", error)
        return replace(choices[0], threads=threads)
    return min(timed, key=lambda choice: min(choice.microseconds.values()))


def with_threads(
    choice: Choice, run: NativeRun, values: Sequence[torch.Tensor], threads: int, first: float
) -> Choice:
    """With how many threads a program is fastest, whose first run, with all, took `first` seconds.

    A long one has long kernels, which all threads share: nobody waits for a run that tells so.
    """
    if first >= _LONG_SECONDS:
        return replace(choice, threads=threads, microseconds=_microseconds({threads: first}))
    try:
        runs = _MOST_RUNS if threads > 1 else 1
        times = {count: _repeated(run, values, count, runs) for count in {1, threads}}
        for _ in range(_MORE_TRIES):
            if not is_doubtful(times, threads):
                break
            time.sleep(_PAUSE_SECONDS)
            times[threads] = min(times[threads], _repeated(run, values, threads, runs))
    except (Error, RuntimeError) as error:
        logger.debug("the program fails on its own results, it was not timed: %s", error)
        return replace(choice, threads=threads)
    return _decided(choice, threads, times)


def is_doubtful(times: Mapping[int, float], threads: int) -> bool:
    """Should all threads have helped, by the times, in seconds?

    What has just started may share a core for a while, or a compiler still has one: an LSTM whose
    step takes 2.2 ms with one thread and 1.3 with two was seen to take 5.9.
    """
    is_long = threads > 1 and times[1] >= _SHORT_SECONDS
    return is_long and times[threads] > times[1] * _WORTH


def _decided(choice: Choice, threads: int, times: Mapping[int, float]) -> Choice:
    best = threads if times[threads] <= times[1] * _WORTH else 1
    microseconds = _microseconds(times)
    logger.debug("timed %s: %s", dict(choice.how), microseconds)
    return replace(choice, threads=best, microseconds=microseconds)


def _microseconds(times: Mapping[int, float]) -> dict[str, float]:
    return {str(count): round(seconds * 1e6, 1) for count, seconds in times.items()}


def _repeated(run: NativeRun, values: Sequence[torch.Tensor], threads: int, runs: int) -> float:
    """The shortest time of some runs, in seconds."""
    best, end = float("inf"), time.perf_counter() + _BUDGET_SECONDS
    with torch_threads(threads):
        for _ in range(runs):
            begin = time.perf_counter()
            run.run_again(values)
            now = time.perf_counter()
            best = min(best, now - begin)
            if now > end:
                break
    return best


def _timed(
    choice: Choice,
    prepared: Prepared,
    values: Sequence[torch.Tensor],
    threads: int,
    *,
    decides: bool,
) -> Choice:
    program = NativeProgram(choice.code, choice.calls)
    runs = _MOST_RUNS if decides or threads > 1 else 1  # to be recorded, if there is no choice
    times: dict[int, float] = {}
    for count in sorted({1, threads}):
        run = NativeRun(program, len(prepared.program.outputs))
        with torch_threads(count):
            begin = time.perf_counter()
            run.run(values)  # the first one plans the memory
            if time.perf_counter() - begin < _LONG_SECONDS:
                run.run_again(values)
        times[count] = _repeated(run, values, count, runs)
    return _decided(choice, threads, times)
