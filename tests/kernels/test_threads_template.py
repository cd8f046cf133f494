"""The thread team of generated programs: barriers, sleep between steps, forks, busy machines."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pantile
from pantile.lowering.kernels.build import flags

TEMPLATES = Path(pantile.__file__).parent / "lowering" / "kernels" / "templates"

# Each phase a thread fills its own cell from its neighbour's cell of the phase before: a missing
# barrier shows as a wrong number.
PROGRAM = """
struct State { i64 phases, work; i64 cells[64]; float sink[64 * 16]; };
static State state;
static Team team;

static void run(void* given, int t, int T) {
  State* s = (State*)given;
  for (i64 p = 0; p < s->phases; p++) {
    float x = 1;
    for (i64 i = 0; i < s->work; i++) x = x * 1.0001f + 1e-9f;
    s->sink[t * 16] = x;
    const i64 next = s->cells[(t + 1) % T] + 1;
    barrier(&team);
    s->cells[t] = next;
    barrier(&team);
  }
}

extern "C" void start(int T) { team_start(&team, T, run); }
extern "C" int threads() { return team.threads; }
extern "C" int started() { return team.process != 0; }
extern "C" i64 step(i64 phases, i64 work) {
  state.phases = phases;
  state.work = work;
  for (int t = 0; t < team.threads; t++) state.cells[t] = 0;
  team_run(&team, &state);
  i64 sum = 0;
  for (int t = 0; t < team.threads; t++) sum += state.cells[t];
  return sum;
}
extern "C" void stop() { team_stop(&team); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("threads")
    text = "\n".join((TEMPLATES / name).read_text() for name in ("vector.h", "threads.h"))
    (folder / "program.cpp").write_text(text + PROGRAM)
    subprocess.run(
        ["g++", *flags(), "-shared", "program.cpp", "-o", "program.so"], check=True, cwd=folder
    )
    library = ctypes.CDLL(str(folder / "program.so"))
    library.step.argtypes = [ctypes.c_long, ctypes.c_long]
    library.step.restype = ctypes.c_long
    return library


@pytest.fixture
def team(library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    yield library
    library.stop()


def own_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_thread_sees_what_the_others_wrote_before_the_barrier(
    team: ctypes.CDLL, threads: int
) -> None:
    team.start(threads)
    for phases in (0, 1, 2, 500):
        assert team.step(phases, 10) == threads * phases


def test_threads_start_with_the_first_step_and_end_with_stop(team: ctypes.CDLL) -> None:
    before = own_threads()
    team.start(3)
    assert own_threads() == before
    team.step(1, 1)
    assert own_threads() == before + 2
    team.stop()
    assert own_threads() == before
    assert team.step(5, 1) == 15, "a stopped team starts again"


def test_one_thread_starts_nothing(team: ctypes.CDLL) -> None:
    before = own_threads()
    team.start(1)
    assert team.step(20, 1) == 20
    assert own_threads() == before
    assert not team.started()


def test_stop_without_a_step_does_nothing(team: ctypes.CDLL) -> None:
    team.start(4)
    team.stop()


def test_workers_sleep_between_steps(team: ctypes.CDLL) -> None:
    team.start(2)
    team.step(3, 10)
    time.sleep(0.05)
    spent = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - spent < 0.05


def test_many_short_steps_with_pauses_lose_no_wake_up(team: ctypes.CDLL) -> None:
    team.start(2)
    for i in range(300):
        assert team.step(2, 5) == 4
        if i % 10 == 0:
            time.sleep(0.001)  # long enough that the worker has gone to sleep


def test_a_forked_child_starts_its_own_workers(team: ctypes.CDLL) -> None:
    team.start(2)
    assert team.step(4, 10) == 8
    child = os.fork()
    if child == 0:
        right = team.step(4, 10) == 8
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert team.step(4, 10) == 8


def test_more_threads_than_cores_still_finish(team: ctypes.CDLL) -> None:
    team.start(9)
    assert team.step(200, 100) == 9 * 200


@pytest.mark.slow
def test_a_taken_core_costs_its_share_and_no_more(team: ctypes.CDLL) -> None:
    def seconds() -> float:
        best = 1e9
        for _ in range(5):
            begin = time.perf_counter()
            team.step(100, 100_000)
            best = min(best, time.perf_counter() - begin)
        return best

    team.start(2)
    free = seconds()
    rival = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        taken = seconds()
    finally:
        rival.kill()
        rival.wait()
    assert taken < 1.5 * 2 * free
