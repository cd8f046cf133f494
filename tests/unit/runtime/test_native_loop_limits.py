"""The device loop over long times: Ctrl-C, memory, and a host that is busy."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.runtime.loop_programs import plan, program, schedule, spec_of

from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import Accumulator, Argument, ResultSpec, Schedule, State, Threads

ROOT = Path(__file__).resolve().parents[3]


def same_rows(iterations: int, accumulation: int, replicas: int) -> Schedule:
    """A schedule in which every micro-batch reads all of the arguments."""
    table = schedule(iterations, accumulation, replicas)
    return Schedule(np.zeros_like(table.parts), table.slots, table.wanted)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("iterations", "accumulation", "replicas", "workers"),
    [(20, 1, 1, 1), (1, 20, 1, 1), (2, 5, 3, 2), (10, 1, 3, 2)],
)
def test_a_pause_loses_and_repeats_nothing(
    iterations: int, accumulation: int, replicas: int, workers: int
) -> None:
    wait = torch.tensor([0.001])
    counts = [torch.zeros(1) for _ in range(replicas)]
    loop = Loop(
        plan(
            program("WAIT"),
            [Argument(0), State(counts)],
            arguments=[spec_of(wait)],
            schedule=same_rows(iterations, accumulation, replicas),
            threads=Threads(workers=workers),
        ),
        deadline=0.0,
    )

    loop.run([wait], [])

    assert [count.item() for count in counts] == [iterations * accumulation] * replicas


def test_a_pause_inside_an_iteration_keeps_the_sum() -> None:
    x, total, w = torch.randn(12, 3), torch.zeros(3), torch.zeros(3)
    loop = Loop(
        plan(
            program("ADD"),
            [Argument(0), Accumulator([total])],
            arguments=[spec_of(x, 12)],
            schedule=schedule(2, 6),
            update=program("DESCEND"),
            update_inputs=[w, total],
        ),
        deadline=0.0,
    )

    loop.run([x], [])

    expected = torch.zeros(3)
    for rows in x.split(6):
        expected = expected - sum(rows, torch.zeros(3)) / 2
    assert torch.equal(w, expected)


INTERRUPT = """
import json, os, signal, sys, threading, time, torch
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import Accumulator, Argument, State, Threads
from tests.unit.runtime.loop_programs import plan, program, schedule, spec_of

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
shape, workers = json.loads(sys.argv[1]), int(sys.argv[2])
parts = shape[0] * shape[1] * shape[2]
wait, counts = torch.full((parts,), 0.005), [torch.zeros(1) for _ in range(shape[2])]
loop = Loop(plan(program("WAIT"), [Argument(0), State(counts)], arguments=[spec_of(wait, parts)],
                 schedule=schedule(*shape), threads=Threads(workers=workers)))
sent = []
def interrupt():
    while counts[0].item() < 3:
        time.sleep(0.001)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    loop.run([wait], [])
except KeyboardInterrupt:
    print("after", time.perf_counter() - sent[0])
for count in counts:
    count.zero_()
loop.run([torch.zeros(parts)], [])
print("again", all(count.item() == shape[0] * shape[1] for count in counts))
"""


@pytest.mark.parametrize(
    ("shape", "workers"), [((1000, 1, 1), 1), ((1, 1000, 1), 1), ((500, 2, 4), 2)]
)
def test_ctrl_c_is_heard_within_a_second_and_the_loop_runs_again(
    shape: tuple[int, int, int], workers: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT, json.dumps(shape), str(workers)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )

    after, again = done.stdout.splitlines() or ("", done.stderr)
    assert after.startswith("after ") and float(after.split()[1]) < 1.0
    assert again == "again True"


def least_growth(run: Callable[[], None]) -> int:
    """Of the memory of this process: a leak shows every time, what others do meanwhile does not."""
    growth = []
    for _ in range(3):
        gc.collect()
        before = resident_bytes()
        run()
        growth.append(resident_bytes() - before)
    return min(growth)


@pytest.mark.parametrize(("name", "replicas"), [("SCALE", 1), ("TRANSPOSE", 1), ("SCALE", 2)])
def test_memory_does_not_grow_over_a_hundred_thousand_micro_batches(
    name: str, replicas: int
) -> None:
    iterations = 100
    arguments = [torch.randn(iterations * replicas, 4) for _ in range(2)]
    shape = (4, 1) if name == "TRANSPOSE" else (1, 4)
    loop = Loop(
        plan(
            program(name, outputs=1),
            [Argument(0), State([torch.tensor(1.0)])],
            arguments=[spec_of(arguments[0], iterations * replicas)],
            results=[ResultSpec("y", shape, torch.float32)],
            schedule=schedule(iterations, 1, replicas),
            threads=Threads(workers=replicas, each=1),
        )
    )
    destinations = loop.new_destinations()

    def run_some(count: int) -> None:
        for i in range(count):
            loop.run([arguments[i % 2]], destinations)

    run_some(100)

    assert least_growth(lambda: run_some(1000 // replicas)) < 1_000_000


def test_a_hundred_thousand_calls_do_not_grow_memory() -> None:
    x = torch.randn(2, 4)
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument(0), State([torch.tensor(1.0)])],
            arguments=[spec_of(x)],
            results=[ResultSpec("y", (2, 4), torch.float32)],
        )
    )

    def run_some(count: int) -> None:
        for _ in range(count):
            loop.run([x], loop.new_destinations())

    run_some(1000)

    assert least_growth(lambda: run_some(100_000)) < 1_000_000


@contextlib.contextmanager
def busy_host(processes: int) -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def cpu_seconds(workers: int) -> float:
    """CPU time of 500 steps of two replicas that meet in each one."""
    x = torch.ones(1)
    loop = Loop(
        plan(
            program("WORK"),
            [Argument(0), Accumulator([torch.zeros(1), torch.zeros(1)])],
            arguments=[spec_of(x)],
            schedule=same_rows(500, 1, 2),
            threads=Threads(workers=workers, each=1),
        )
    )
    loop.run([x], [])
    begin = time.process_time()
    loop.run([x], [])
    return time.process_time() - begin


def test_replicas_that_wait_for_each_other_on_a_busy_host_do_not_burn_its_cores() -> None:
    with busy_host(2):
        alone = min(cpu_seconds(1) for _ in range(3))
        together = min(cpu_seconds(2) for _ in range(3))

    assert together < 2 * alone
