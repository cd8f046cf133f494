"""Replicas of the device loop: threads, sums over replicas, groups, failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import reduce
from pathlib import Path

import pytest
import torch
from tests.unit.runtime.loop_programs import plan, program, schedule, spec_of

from pantile.enums import CommGroupType
from pantile.errors import ExecutionError
from pantile.runtime.inputs import Slicing
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import (
    Accumulator,
    Argument,
    ResultSpec,
    Schedule,
    State,
    Threads,
)

ROOT = Path(__file__).resolve().parents[3]
FLOAT = torch.float32
REDUCED = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
)


def in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, parts)


def copies(replicas: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes for each replica."""
    generator = torch.Generator().manual_seed(elements)
    real = torch.randn(replicas, elements, 2, generator=generator, dtype=torch.float64)
    real = real * 10.0 ** torch.randint(-7, 5, real.shape, generator=generator)
    x = torch.view_as_complex(real) if dtype.is_complex else real[..., 0].contiguous()
    return x.to(dtype)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
def test_each_replica_reads_its_rows_and_its_state(workers: int) -> None:
    x = torch.randn(3 * 2 * 4 * 2, 3)
    offsets = [torch.tensor(float(r)) for r in range(4)]
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument(0), State(offsets)],
            arguments=[spec_of(x, 24)],
            results=[ResultSpec("y", (2, 3), FLOAT)],
            schedule=schedule(3, 2, 4),
            threads=Threads(workers=workers, each=1),
        )
    )
    [y] = destinations = loop.new_destinations()

    loop.run([x], destinations)

    offset = torch.arange(4.0).repeat(6).repeat_interleave(2)[:, None]
    assert torch.equal(y, 2 * x + offset)


def test_replicas_of_a_group_read_the_same_rows() -> None:
    x = torch.randn(2 * 2, 3)  # [iteration][group]
    slicing = Slicing(2, 1, 4, group_size=2, grouping=CommGroupType.Orthogonal)
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument(0), State([torch.tensor(0.0)])],
            arguments=[spec_of(x, 4)],
            results=[ResultSpec("y", (1, 3), FLOAT)],
            schedule=Schedule.of(slicing, lambda iteration, step: True),
            threads=Threads(workers=2),
        )
    )
    [y] = destinations = loop.new_destinations()

    loop.run([x], destinations)

    assert torch.equal(y, 2 * x[[0, 1, 0, 1, 2, 3, 2, 3]])


def test_a_replica_can_read_a_copy_of_an_argument() -> None:
    x, copy = torch.randn(2, 3), torch.randn(2, 3)
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument((0, 1)), State([torch.tensor(0.0)])],
            arguments=[spec_of(x, 2), spec_of(copy, 2, "copy")],
            results=[ResultSpec("y", (1, 3), FLOAT)],
            schedule=schedule(1, 1, 2),
        )
    )
    [y] = destinations = loop.new_destinations()

    loop.run([x, copy], destinations)

    assert torch.equal(y, 2 * torch.stack([x[0], copy[1]]))


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize(("replicas", "workers"), [(2, 1), (4, 2), (5, 3)])
@pytest.mark.parametrize("elements", [1, 1000, 40_001])
def test_sums_over_replicas_have_the_bits_of_sums_in_order(
    dtype: torch.dtype, replicas: int, workers: int, elements: int
) -> None:
    x = copies(replicas, elements, dtype)
    sums = [torch.empty(elements, dtype=dtype) for _ in range(replicas)]
    loop = Loop(
        plan(
            program("COPY"),
            [Argument(0), Accumulator(sums)],
            arguments=[spec_of(x, replicas)],
            schedule=schedule(1, 1, replicas),
            threads=Threads(workers=workers),
        )
    )

    loop.run([x], [])

    assert torch.equal(sums[0], in_order(list(x)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_number_is_added_as_torch_adds_it(dtype: torch.dtype) -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    other = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(0))]
    x, elements = torch.stack([every, other]), len(every)
    sums = [torch.empty(elements, dtype=dtype) for _ in range(2)]
    loop = Loop(
        plan(
            program("COPY"),
            [Argument(0), Accumulator(sums)],
            arguments=[spec_of(x, 2)],
            schedule=schedule(1, 1, 2),
        )
    )

    loop.run([x], [])

    expected = every + other
    numbers = ~expected.isnan()
    assert torch.equal(sums[0].isnan(), expected.isnan())
    assert torch.equal(sums[0].view(torch.int16)[numbers], expected.view(torch.int16)[numbers])


@pytest.mark.parametrize("groups", [(0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 2, 3), (0, 0, 0, 0)])
def test_groups_of_replicas_are_summed_apart(groups: tuple[int, ...]) -> None:
    x = copies(4, 300, FLOAT)
    sums = [torch.empty(300) for _ in range(4)]
    reduced = torch.empty(max(groups) + 1, 300)
    loop = Loop(
        plan(
            program("COPY"),
            [Argument(0), Accumulator(sums, groups, reduced)],
            arguments=[spec_of(x, 4)],
            schedule=schedule(1, 1, 4),
            threads=Threads(workers=2),
        )
    )

    loop.run([x], [])

    for group, total in enumerate(reduced):
        members = [x[r] for r in range(4) if groups[r] == group]
        assert torch.equal(total, in_order(members))


def test_a_single_replica_with_a_group_fills_its_row() -> None:
    x = copies(1, 8, FLOAT)
    reduced = torch.empty(1, 8)
    accumulator = Accumulator([torch.empty(8)], [0], reduced)
    loop = Loop(plan(program("COPY"), [Argument(0), accumulator], arguments=[spec_of(x, 1)]))

    loop.run([x], [])

    assert torch.equal(reduced, x)


@pytest.mark.parametrize(("workers", "elements"), [(1, 10), (2, 10), (4, 10), (2, 50_000)])
def test_training_steps_have_the_same_bits_for_any_number_of_workers(
    workers: int, elements: int
) -> None:
    iterations, accumulation, replicas = 5, 3, 4
    x = torch.randn(iterations * accumulation * replicas, elements)
    gradients = [torch.empty(elements) for _ in range(replicas)]
    w = torch.zeros(elements)
    loop = Loop(
        plan(
            program("ADD"),
            [Argument(0), Accumulator(gradients)],
            arguments=[spec_of(x, len(x))],
            schedule=schedule(iterations, accumulation, replicas),
            threads=Threads(workers=workers, each=1, update=1),
            update=program("DESCEND"),
            update_inputs=[w, gradients[0]],
        )
    )

    loop.run([x], [])

    expected = torch.zeros(elements)
    for steps in x.reshape(iterations, accumulation, replicas, elements):
        sums = [in_order(list(steps[:, r])) for r in range(replicas)]
        expected = expected - in_order(sums) / 2
    assert torch.equal(w, expected)


def test_workers_are_threads_with_their_own_settings() -> None:
    torch.set_num_threads(2)
    loop = Loop(
        plan(
            program("SETTINGS", outputs=1),
            [],
            results=[ResultSpec("y", (3,), FLOAT)],
            schedule=schedule(1, 1, 4),
            threads=Threads(workers=2, each=1),
        )
    )
    [y] = destinations = loop.new_destinations()

    loop.run([], destinations)

    threads, gradients, thread = y.reshape(4, 3).T
    assert threads.tolist() == [1.0] * 4 and gradients.tolist() == [0.0] * 4
    assert thread[0] == thread[2] != thread[1] == thread[3]
    assert torch.get_num_threads() == 2


def test_many_iterations_without_an_update_need_no_meeting_and_are_all_done() -> None:
    x = torch.randn(2 * 3000, 2)
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument(0), State([torch.tensor(3.0)])],
            arguments=[spec_of(x, 6000)],
            results=[ResultSpec("y", (1, 2), FLOAT)],
            schedule=schedule(3000, 1, 2),
            threads=Threads(workers=2),
        )
    )
    [y] = destinations = loop.new_destinations()

    loop.run([x], destinations)

    assert torch.equal(y, 2 * x + 3)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_failure_of_a_replica_stops_all(workers: int) -> None:
    loop = Loop(
        plan(
            program("FAIL_THIRD"),
            [],
            schedule=schedule(4, 1, 4),
            threads=Threads(workers=workers),
            update=program("SETTINGS", outputs=1),
        )
    )

    with pytest.raises(ExecutionError, match="device iteration 2, accumulation step 0, replica"):
        loop.run([], [])


def test_loops_of_several_threads_run_side_by_side() -> None:
    x = torch.randn(8, 3)
    wrong: list[int] = []

    def train(seed: int) -> None:
        loop = Loop(
            plan(
                program("SCALE", outputs=1),
                [Argument(0), State([torch.tensor(float(seed))])],
                arguments=[spec_of(x, 8)],
                results=[ResultSpec("y", (1, 3), FLOAT)],
                schedule=schedule(2, 1, 4),
                threads=Threads(workers=2),
            )
        )
        for _ in range(200):
            [y] = destinations = loop.new_destinations()
            loop.run([x], destinations)
            if not torch.equal(y, 2 * x + seed):
                wrong.append(seed)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


FORK = """
import os, torch
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import Argument, ResultSpec, State, Threads
from tests.unit.runtime.loop_programs import plan, program, schedule, spec_of

x = torch.ones(4, 3)
loop = Loop(plan(program("SCALE", outputs=1), [Argument(0), State([torch.tensor(3.0)])],
    arguments=[spec_of(x, 4)], results=[ResultSpec("y", (1, 3), torch.float32)],
    schedule=schedule(1, 1, 4), threads=Threads(workers=2, each=1)))
loop.run([x], loop.new_destinations())
child = os.fork()
[y] = destinations = loop.new_destinations()
loop.run([x], destinations)
del loop
assert torch.equal(y, 2 * x + 3)
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
print("child ended with", os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_gets_threads_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, cwd=ROOT
    )

    assert done.stdout.strip() == "child ended with 0", done.stderr
