"""Schedules: generated, printed, parsed, validated, simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from pantile.errors import ScheduleError
from pantile.schedule import (
    Action,
    Kind,
    Schedule,
    StageGraph,
    StageTimes,
    parse_schedule,
    phased,
    pipelined,
    print_schedule,
    sharded,
    simulate,
    validate,
)

quickly = settings(deadline=None, max_examples=50)

stages = st.integers(1, 8)
micro_batches = st.integers(1, 16)


@st.composite
def schedules(draw) -> Schedule:
    """A schedule of any strategy."""
    count, numbers = draw(stages), draw(micro_batches)
    graph = StageGraph.chain(draw(st.lists(st.integers(0, 7), min_size=count, max_size=count)))
    training = draw(st.booleans())
    recomputed = draw(st.sets(st.integers(0, count - 1))) if training else set()
    strategy = draw(st.sampled_from(["pipelined", "sharded", "phased"]))
    if strategy == "phased":
        cuts = sorted(draw(st.sets(st.integers(1, count))) | {count})
        phases = [list(range(a, b)) for a, b in zip([0, *cuts], cuts, strict=False)]
        serial = draw(st.booleans())
        return phased(
            graph, phases, numbers, training=training, recomputed=recomputed, serial=serial
        )
    generate = pipelined if strategy == "pipelined" else sharded
    return generate(graph, numbers, training=training, recomputed=recomputed)


@quickly
@given(schedules())
def test_generated_schedules_are_valid_and_their_text_reads_back(schedule):
    validate(schedule)

    assert parse_schedule(print_schedule(schedule)) == schedule


@quickly
@given(stages, micro_batches)
def test_a_pipeline_takes_micro_batches_plus_twice_the_stages_before_the_last(count, numbers):
    schedule = pipelined(StageGraph.chain(range(count)), numbers, training=True)

    # The published rule for IPUs: GA + 2 (P - 1) cycles; here one more, for the update.
    assert len(schedule.cycles) == numbers + 2 * (count - 1) + 1
    # The published size of a stash: 2 (P - 1 - i) + 1 micro-batches, or all there are.
    room = [min(numbers, 2 * (count - 1 - stage) + 1) for stage in range(count)]
    assert list(schedule.in_flight()) == room
    validate(schedule, capacity=room)


@quickly
@given(stages, micro_batches, st.floats(0.5, 4), st.floats(0.5, 4))
def test_equal_stages_take_and_idle_as_long_as_the_formula_says(count, numbers, f, b):
    schedule = pipelined(StageGraph.chain(range(count)), numbers, training=True)

    timeline = simulate(schedule, [StageTimes(f, b)] * count)

    assert timeline.makespan == pytest.approx((numbers + count - 1) * (f + b))
    assert timeline.bubble == pytest.approx((count - 1) / (numbers + count - 1))


@quickly
@given(schedules(), st.data())
def test_free_devices_never_take_longer_than_devices_in_lockstep(schedule, data):
    times = data.draw(
        st.lists(
            st.builds(StageTimes, *[st.floats(0, 9)] * 4),
            min_size=schedule.stages,
            max_size=schedule.stages,
        )
    )

    lockstep, free = simulate(schedule, times), simulate(schedule, times, lockstep=False)

    assert free.makespan <= lockstep.makespan + 1e-9
    assert free.busy == pytest.approx(lockstep.busy)
    work = max(
        sum(times[a.stage].of(a.kind) for _, d, a in schedule.actions() if d == device)
        for device in schedule.devices
    )
    assert free.makespan >= work - 1e-9


@quickly
@given(stages, micro_batches)
def test_sharded_stages_work_one_at_a_time(count, numbers):
    schedule = sharded(StageGraph.chain(range(count)), numbers, training=True)

    timeline = simulate(schedule, [StageTimes(1, 2)] * count)

    assert schedule.in_flight() == (1,) * count
    assert timeline.makespan == pytest.approx(3 * count * numbers)


@quickly
@given(schedules(), st.randoms(use_true_random=False))
def test_a_schedule_without_one_of_its_actions_is_refused(schedule, random):
    actions = list(schedule.actions())
    cycle, device, gone = random.choice(actions)
    column = schedule.devices.index(device)
    cells = [list(row) for row in schedule.cycles]
    cells[cycle][column] = tuple(a for a in cells[cycle][column] if a != gone)
    broken = replace(schedule, cycles=tuple(map(tuple, cells)))

    # With one micro-batch, a stage that recomputed it no longer recomputes anything: that is legal.
    if gone.kind is Kind.RECOMPUTE and schedule.micro_batches == 1:
        validate(broken)
        return
    with pytest.raises(ScheduleError):
        validate(broken)


def test_three_stages_of_five_micro_batches_fill_run_and_drain():
    schedule = pipelined(StageGraph.chain(range(3)), 5, training=True, recomputed={0})

    assert print_schedule(schedule) == (
        "schedule pipelined of 5 micro-batches\n"
        "stage 0 on ipu 0\n"
        "stage 1 on ipu 1 after 0\n"
        "stage 2 on ipu 2 after 1\n"
        "cycle | ipu 0       | ipu 1   | ipu 2\n"
        "    0 | 0F0         |         |\n"
        "    1 | 0F1         | 1F0     |\n"
        "    2 | 0F2         | 1F1     | 2F0 2B0\n"
        "    3 | 0F3         | 1F2 1B0 | 2F1 2B1\n"
        "    4 | 0F4 0R0 0B0 | 1F3 1B1 | 2F2 2B2\n"
        "    5 | 0R1 0B1     | 1F4 1B2 | 2F3 2B3\n"
        "    6 | 0R2 0B2     | 1B3     | 2F4 2B4\n"
        "    7 | 0R3 0B3     | 1B4     |\n"
        "    8 | 0R4 0B4     |         |\n"
        "    9 | 0U          | 1U      | 2U\n"
    )


def test_stages_of_a_phase_run_side_by_side_where_they_read_nothing_of_each_other():
    graph = StageGraph((0, 2, 1), ((), (), (0, 1)))

    schedule = phased(graph, [[0, 1], [2]], 1, training=False, serial=False)

    assert [[str(a) for _, _, a in schedule.actions()]] == [["0F0", "1F0", "2F0"]]
    assert len(schedule.cycles) == 2


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("0 | 0F0 | 1F0\n1 | | 1B0\n2 | 0B0 |\n3 | 0U | 1U", "1F0 .* reads what 0F0"),
        ("0 | 0F0 |\n1 | 0B0 | 1F0 1B0\n2 | 0U | 1U", "0B0 .* reads what 1B0"),
        ("0 | 0F0 |\n1 | | 1F0 1B0\n2 | 0B0 | 1U\n3 | 0U |", "0B0 .* update"),
        ("0 | 0F0 |\n1 | | 1F0 1B0\n2 | 0B0 |\n3 | 0U |", "lacks 1U"),
        ("0 | 0F0 |\n1 | | 1F0 1B0\n2 | 0B0 0F0 |\n3 | 0U | 1U", "0F0 .* cycle 0 and cycle 2"),
        ("0 | 0F0 |\n1 | 1F0 | 1B0\n2 | 0B0 |\n3 | 0U | 1U", "1F0 .* device 0"),
        ("0 | 0F0 2F0 |\n1 | | 1F0 1B0\n2 | 0B0 |\n3 | 0U | 1U", "2F0 .* none of its actions"),
    ],
)
def test_what_cannot_be_executed_is_named(table, fault):
    head = "schedule mine of 1 micro-batch\nstage 0 on ipu 0\nstage 1 on ipu 1 after 0\n"
    schedule = parse_schedule(f"{head}cycle | ipu 0 | ipu 1\n{table}\n")

    with pytest.raises(ScheduleError, match=fault):
        validate(schedule)


def test_micro_batches_out_of_order_are_refused():
    text = "schedule mine of 2 micro-batches\nstage 0 on ipu 0\ncycle | ipu 0\n0 | 0F1\n1 | 0F0\n"

    with pytest.raises(ScheduleError, match=r"0F0 .* after that of micro-batch 1"):
        validate(parse_schedule(text))


def test_a_stage_without_room_for_its_activations_is_refused():
    schedule = pipelined(StageGraph.chain(range(3)), 8, training=True)

    with pytest.raises(ScheduleError, match=r"stage 0 .* of 5 micro-batches; it has room for 4"):
        validate(schedule, capacity=[4, 4, 4])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schedule",
        "schedule a of 1 micro-batch\nstage 1 on ipu 0\ncycle | ipu 0\n",
        "schedule a of 1 micro-batch\nstage 0 on ipu 0\n",
        "schedule a of 1 micro-batch\nstage 0 on ipu 0\ncycle | ipu 0\n1 | 0F0\n",
        "schedule a of 1 micro-batch\nstage 0 on ipu 0\ncycle | ipu 0\n0 | 0F0 | 0B0\n",
        "schedule a of 1 micro-batch\nstage 0 on ipu 0\ncycle | ipu 0\n0 | 0X0\n",
        "schedule a of 1 micro-batch\nstage 0 on ipu 0 after 0\ncycle | ipu 0\n0 | 0F0\n",
    ],
)
def test_text_that_is_no_schedule_is_refused_with_a_fix(text):
    with pytest.raises(poptorch.Error) as error:
        parse_schedule(text)

    assert error.value.fix


def test_actions_print_as_they_are_parsed():
    for text in ("2F0", "1R3", "10B12", "0U"):
        assert str(Action.parse(text)) == text
