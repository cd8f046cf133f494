"""The device loop: what it feeds, keeps and refuses, with tiny programs of known results."""

from __future__ import annotations

import ctypes
import gc
import threading
import time

import pytest
import torch
from tests.unit.runtime.loop_programs import library, plan, program, schedule, spec_of

from pantile.errors import ExecutionError, InputMismatch, StateError
from pantile.runtime.native.loop import Loop
from pantile.runtime.native.plan import (
    Accumulator,
    Argument,
    ArgumentSpec,
    CompiledProgram,
    Plan,
    ResultSpec,
    Seeds,
    State,
    Threads,
    Weight,
)

FLOAT = torch.float32


def scaled(x: torch.Tensor, micro: tuple[int, ...], parts: int, **rest: object) -> Plan:
    """y = 2 x + 3."""
    return plan(
        program("SCALE", outputs=1),
        [Argument(0), State([torch.tensor(3.0)])],
        arguments=[spec_of(x, parts)],
        results=[ResultSpec("y", micro, FLOAT)],
        **rest,
    )


def results_of(loop: Loop, *arguments: torch.Tensor) -> list[torch.Tensor]:
    destinations = loop.new_destinations()
    loop.run(arguments, destinations)
    return destinations


def test_runs_every_micro_batch_on_its_own_rows() -> None:
    x = torch.randn(12, 5)
    loop = Loop(scaled(x, (2, 5), 6, schedule=schedule(3, 2)))

    [y] = results_of(loop, x)

    assert torch.equal(y, 2 * x + 3)


def test_a_new_argument_at_another_address_is_read() -> None:
    x = torch.randn(4)
    loop = Loop(scaled(x, (4,), 1))
    results_of(loop, x)

    [y] = results_of(loop, other := torch.randn(4))

    assert torch.equal(y, 2 * other + 3)


def test_an_argument_changed_in_place_is_read() -> None:
    x = torch.randn(4)
    loop = Loop(scaled(x, (4,), 1))
    results_of(loop, x)
    x += 1

    [y] = results_of(loop, x)

    assert torch.equal(y, 2 * x + 3)


def test_state_changed_in_place_is_read() -> None:
    state, x = torch.tensor(1.0), torch.zeros(2)
    loop = Loop(
        plan(
            program("SCALE", outputs=1),
            [Argument(0), State([state])],
            arguments=[spec_of(x)],
            results=[ResultSpec("y", (2,), FLOAT)],
        )
    )
    results_of(loop, x)
    state.fill_(7.0)

    [y] = results_of(loop, x)

    assert y.tolist() == [7.0, 7.0]


def test_only_wanted_results_are_kept_side_by_side() -> None:
    x = torch.randn(4, 2, 3)  # [iteration][step][sample]
    wants = schedule(4, 2, wants=lambda iteration, step: iteration % 2 == 1 and step == 1)
    loop = Loop(scaled(x.flatten(0, 1), (1, 3), 8, schedule=wants))

    [y] = results_of(loop, x.flatten(0, 1))

    assert torch.equal(y, 2 * x[[1, 3], 1] + 3)


def test_results_without_dims_become_a_vector() -> None:
    x = torch.tensor(4.0)
    loop = Loop(scaled(x, (), 1))
    [y] = results_of(loop, x)
    assert y.shape == () and y.item() == 11.0

    many = ResultSpec("y", (), FLOAT)

    assert many.joined(1) == () and many.joined(5) == (5,)


def test_empty_arguments_and_results_pass() -> None:
    x = torch.zeros(0, 3)
    loop = Loop(scaled(x, (0, 3), 1))

    [y] = results_of(loop, x)

    assert y.shape == (0, 3)


def test_a_result_that_is_not_contiguous_is_copied_by_its_strides() -> None:
    x = torch.randn(3 * 2, 4)
    loop = Loop(
        plan(
            program("TRANSPOSE", outputs=1),
            [Argument(0)],
            arguments=[spec_of(x, 2)],
            results=[ResultSpec("y", (4, 3), FLOAT)],
            schedule=schedule(2),
        )
    )

    [y] = results_of(loop, x)

    assert torch.equal(y, torch.cat([x[:3].T, x[3:].T]))


def test_a_part_of_the_iterations_can_run() -> None:
    x = torch.randn(4, 2)
    loop = Loop(scaled(x, (1, 2), 4, schedule=schedule(4)))
    [y] = destinations = [torch.zeros(4, 2)]

    loop.run([x], destinations, first=1, count=2)

    assert torch.equal(y, torch.cat([torch.zeros(1, 2), 2 * x[1:3] + 3, torch.zeros(1, 2)]))


def test_iterations_outside_the_schedule_are_refused() -> None:
    x = torch.randn(4, 2)
    loop = Loop(scaled(x, (1, 2), 4, schedule=schedule(4)))

    with pytest.raises(ExecutionError, match="3 to 5"):
        loop.run([x], loop.new_destinations(), first=3, count=2)


def test_accumulators_start_at_zero_and_the_update_follows_each_iteration() -> None:
    x, w = torch.randn(6, 4), torch.ones(4)
    gradient = torch.full((4,), 99.0)
    loop = Loop(
        plan(
            program("ADD"),
            [Argument(0), Accumulator([gradient])],
            arguments=[spec_of(x, 6)],
            schedule=schedule(2, 3),
            update=program("DESCEND"),
            update_inputs=[w, gradient],
        )
    )

    loop.run([x], [])

    expected = torch.ones(4)
    for rows in x.split(3):
        expected = expected - (rows[0] + rows[1] + rows[2]) / 2
    assert torch.equal(w, expected)


def test_weights_make_a_running_mean() -> None:
    x, mean = torch.randn(7, 4), torch.full((4,), 99.0)
    loop = Loop(
        plan(
            program("MEAN"),
            [Argument(0), Accumulator([mean]), Weight.OLD, Weight.NEW],
            arguments=[spec_of(x, 7)],
            schedule=schedule(1, 7),
        )
    )

    loop.run([x], [])

    torch.testing.assert_close(mean, x.mean(0))


def test_times_are_those_of_the_performance_counter() -> None:
    x = torch.tensor([0.002])
    loop = Loop(
        plan(
            program("WAIT"),
            [Argument(0), State([torch.zeros(1)])],
            arguments=[spec_of(x)],
            schedule=schedule(1),
        )
    )
    before = time.perf_counter()

    loop.run([x], [])

    begin, fed, computed, kept = loop.times[0, 0, 0]
    assert before <= begin <= fed <= computed <= kept <= time.perf_counter()
    assert computed - fed >= 0.002


def test_settings_of_the_calling_thread_are_put_back() -> None:
    torch.set_num_threads(2)
    loop = Loop(
        plan(
            program("SETTINGS", outputs=1),
            [],
            results=[ResultSpec("y", (3,), FLOAT)],
            threads=Threads(each=1),
        )
    )

    [y] = results_of(loop)

    assert y[:2].tolist() == [1.0, 0.0]
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.zeros(5, 3), r"shape \[5, 3\]"),
        (torch.zeros(4, 3, dtype=torch.float64), "float64"),
        (torch.zeros(3, 4).T, r"strides \[1, 4\]"),
        (torch.zeros(4, 3, device="meta"), "meta"),
        (torch.zeros(4, 3).to_sparse(), "sparse_coo"),
        (torch.zeros(4, 3).to_mkldnn(), "mkldnn"),
        (torch.nn.Parameter(torch.zeros(4, 3)), "Parameter"),
        ([[0.0] * 3] * 4, "a list"),
        (None, "NoneType"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(wrong: object, said: str) -> None:
    loop = Loop(scaled(torch.zeros(4, 3), (4, 3), 1))

    with pytest.raises(InputMismatch, match="argument 'x'") as caught:
        loop.run([wrong], loop.new_destinations())  # type: ignore[list-item]

    assert caught.match(said)
    assert caught.value.fix


def test_an_argument_that_lost_its_memory_is_named() -> None:
    loop, x = Loop(scaled(torch.zeros(4, 3), (4, 3), 1)), torch.zeros(4, 3)
    x.untyped_storage().resize_(0)

    with pytest.raises(InputMismatch, match=r"argument 'x' is .* without data"):
        loop.run([x], loop.new_destinations())


def test_an_argument_with_a_pending_negation_is_named() -> None:
    loop = Loop(scaled(torch.zeros(1), (1,), 1))
    imaginary = torch.tensor([1 + 2j]).conj().imag

    with pytest.raises(InputMismatch, match="pending negation"):
        loop.run([imaginary], loop.new_destinations())


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4), torch.zeros(4, 3, dtype=torch.int32), torch.zeros(3, 4).T]
)
def test_a_destination_that_does_not_fit_is_named(wrong: torch.Tensor) -> None:
    loop = Loop(scaled(torch.zeros(4, 3), (4, 3), 1))

    with pytest.raises(ExecutionError, match="destination of result 'y'"):
        loop.run([torch.zeros(4, 3)], [wrong])


def test_too_few_tensors_are_refused() -> None:
    loop = Loop(scaled(torch.zeros(4, 3), (4, 3), 1))

    with pytest.raises(InputMismatch, match="0 arguments"):
        loop.run([], loop.new_destinations())
    with pytest.raises(ExecutionError, match="2 destinations"):
        loop.run([torch.zeros(4, 3)], [torch.zeros(4, 3)] * 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LONGER", r"output 0 has the shape \[4\]; the plan has \[3\]"),
        ("OTHER_TYPE", "output 0 has the type"),
        ("NO_OUTPUT", "output 0 is missing"),
    ],
)
def test_an_output_that_is_not_as_planned_is_never_copied(name: str, said: str) -> None:
    loop = Loop(
        plan(
            program(name, outputs=1),
            [Argument(0)],
            arguments=[spec_of(torch.zeros(3))],
            results=[ResultSpec("y", (3,), FLOAT)],
        )
    )
    [y] = destinations = [torch.full((3,), 5.0)]

    with pytest.raises(ExecutionError, match=said):
        loop.run([torch.zeros(3)], destinations)

    assert y.tolist() == [5.0] * 3


def test_a_failure_tells_the_message_and_the_place() -> None:
    loop = Loop(plan(program("FAIL_THIRD"), [], schedule=schedule(4, 2)))

    with pytest.raises(ExecutionError, match="run number 3") as caught:
        loop.run([], [])

    assert caught.match("device iteration 1, accumulation step 0, replica 0")


def test_a_failed_update_is_told_as_such() -> None:
    update = program("FAIL_THIRD")
    loop = Loop(plan(program("SETTINGS", outputs=1), [], schedule=schedule(4), update=update))

    with pytest.raises(ExecutionError, match="the weight update of device iteration 2: run number"):
        loop.run([], [])


def test_a_failure_without_a_message_is_still_told() -> None:
    loop = Loop(plan(program("FAIL_SILENTLY"), []))

    with pytest.raises(ExecutionError, match="gave no reason"):
        loop.run([], [])


def test_a_loop_runs_again_after_a_failure() -> None:
    loop = Loop(plan(program("FAIL_THIRD"), [], schedule=schedule(2)))
    loop.run([], [])
    with pytest.raises(ExecutionError):
        loop.run([], [])

    loop.run([], [])


def test_a_program_that_cannot_be_set_up_leaves_nothing_behind() -> None:
    kept = torch.zeros(2)
    before = library("NO_CONTEXT").live_contexts()
    references = kept._use_count()  # type: ignore[attr-defined]

    with pytest.raises(ExecutionError, match="could not be set up"):
        Loop(plan(program("NO_CONTEXT"), [State([kept])], schedule=schedule(1, 1, 3)))

    assert library("NO_CONTEXT").live_contexts() == before
    assert kept._use_count() == references  # type: ignore[attr-defined]


def test_a_dead_loop_frees_contexts_and_handles() -> None:
    live, state = library("SCALE").live_contexts, torch.tensor(3.0)
    gc.collect()
    before, references = live(), state._use_count()  # type: ignore[attr-defined]
    x = torch.zeros(2)
    inputs = [Argument(0), State([state])]
    loop = Loop(plan(program("SCALE", outputs=1), inputs, arguments=[spec_of(x)]))
    loop.run([x], [])
    assert live() == before + 1

    del loop, inputs
    gc.collect()

    assert live() == before
    assert state._use_count() == references  # type: ignore[attr-defined]


def test_a_closed_loop_says_so() -> None:
    loop = Loop(plan(program("ADD"), []))
    loop.close()

    with pytest.raises(StateError, match="closed"):
        loop.run([], [])


def test_two_threads_cannot_run_one_loop_at_once() -> None:
    wait, count = torch.full((10,), 0.05), torch.zeros(1)
    inputs = [Argument(0), State([count])]
    arguments = [spec_of(wait, 10)]
    loop = Loop(plan(program("WAIT"), inputs, arguments=arguments, schedule=schedule(10)))
    thread = threading.Thread(target=loop.run, args=([wait], []))
    thread.start()
    while not count.item():
        pass  # it runs once it has counted

    with pytest.raises(StateError, match="another thread"):
        loop.run([wait], [])

    thread.join()
    assert count.item() == 10


# ---- plans that contradict themselves --------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        State([torch.zeros(1)] * 3),
        State([torch.zeros(1, device="meta")]),
        Argument(1),
        Argument((0, 0, 0)),
        Accumulator([torch.zeros(2)]),
        Accumulator([torch.zeros(2), torch.zeros(3)]),
        Accumulator([torch.zeros(2, dtype=torch.int32)] * 2),
        Accumulator([torch.zeros(4)[::2], torch.zeros(4)[::2]]),
        Accumulator([torch.zeros(2).expand(2, 2), torch.zeros(2).expand(2, 2)]),
        Accumulator([torch.zeros(2), torch.zeros(2)], groups=[0, 1]),
        Accumulator([torch.zeros(2), torch.zeros(2)], groups=[0, 1], reduced=torch.zeros(1, 2)),
        Accumulator([torch.zeros(2), torch.zeros(2)], groups=[0, 2], reduced=torch.zeros(3, 2)),
        Seeds(-1),
    ],
)
def test_inputs_that_do_not_fit_the_replicas_are_refused(given: object) -> None:
    arguments = [ArgumentSpec("x", (2,), FLOAT, 2)]

    with pytest.raises(ExecutionError, match="input 0"):
        Loop(plan(program("ADD"), [given], arguments=arguments, schedule=schedule(1, 1, 2)))


def test_accumulators_in_the_same_memory_are_refused() -> None:
    one = torch.zeros(2)

    with pytest.raises(ExecutionError, match="share memory"):
        Loop(plan(program("ADD"), [Accumulator([one, one])], schedule=schedule(1, 1, 2)))


def test_a_schedule_that_reads_past_an_argument_is_refused() -> None:
    with pytest.raises(ExecutionError, match="past the end of argument 'x'"):
        Loop(scaled(torch.zeros(6), (2,), 3, schedule=schedule(4)))


def test_a_library_that_is_no_program_is_refused() -> None:
    with pytest.raises(ExecutionError, match="pantile_create"):
        Loop(plan(CompiledProgram(ctypes.CDLL(None), 0), []))
