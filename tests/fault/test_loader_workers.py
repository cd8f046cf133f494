"""Workers of asynchronous loaders that die, hang or lose their parent.

Whatever happens: an error within two seconds (ten for a process that is stopped), no process and
no shared memory left behind.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.unit.data.toy_datasets import Counting, CountingStream, Misbehaving

from pantile.data import AsynchronousDataAccessor, DataLoader
from pantile.data.lifetime import die_with_starter
from pantile.enums import DataLoaderMode, SharingStrategy
from pantile.errors import DataError, WorkerDied, WorkerStalled
from pantile.options import Options

FORK = SharingStrategy.Fork
ROOT = Path(__file__).parents[2]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until_gone(pids, seconds=2.0):
    """The processes that are still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        os.sched_yield()
    return left


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory():
    before = set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    # Other processes have semaphores there, too: theirs go away, what was left behind stays.
    left, deadline = set(os.listdir("/dev/shm")) - before, time.monotonic() + 20
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left &= set(os.listdir("/dev/shm"))
    assert left == set()


# --- the worker dies ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [FORK, SharingStrategy.ForkServer], ids=str)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT"])
def test_a_killed_worker_is_reported_at_once_with_signal_and_place(how, strategy):
    made = AsynchronousDataAccessor(Misbehaving(how), sharing_strategy=strategy)
    iteration = iter(made)
    assert [int(next(iteration)), int(next(iteration))] == [0, 1]
    start = time.monotonic()

    with pytest.raises(WorkerDied, match=f"killed by {how} while loading item 2") as caught:
        next(iteration)

    assert time.monotonic() - start < 2
    assert caught.value.fix
    assert not is_running(made._link.pid)


def test_a_crash_in_native_code_shows_the_python_stack_of_the_worker():
    made = AsynchronousDataAccessor(Misbehaving("SIGSEGV"))

    with pytest.raises(WorkerDied, match=r"toy_datasets\.py"):
        list(made)


def test_a_worker_that_exits_is_reported_with_its_code():
    made = AsynchronousDataAccessor(Misbehaving("exit"), sharing_strategy=FORK)

    with pytest.raises(WorkerDied, match="exited with code 3"):
        list(made)


def test_a_worker_that_dies_before_its_first_item_failed_to_start():
    with pytest.raises(WorkerDied, match="while loading item 0"):
        AsynchronousDataAccessor(Misbehaving("SIGKILL", good=0), sharing_strategy=FORK)


def test_items_that_arrived_before_the_death_are_delivered():
    made = AsynchronousDataAccessor(
        Misbehaving("SIGKILL", good=3), buffer_size=5, early_preload=True, sharing_strategy=FORK
    )
    assert wait_until_gone([made._link.pid]) == []
    iteration = iter(made)

    assert [int(next(iteration)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(WorkerDied):
        next(iteration)


def test_torchs_workers_die_with_the_loaders_worker():
    loader = DataLoader(
        Options(),
        Counting(1000),
        num_workers=2,
        mode=DataLoaderMode.Async,
        async_options={"sharing_strategy": FORK},
    )
    worker = loader._accessor._link.pid
    below = children_of(worker)
    assert len(below) >= 2

    os.kill(worker, signal.SIGKILL)

    assert wait_until_gone([worker, *below]) == []
    with pytest.raises(WorkerDied):
        list(loader)


# --- the worker hangs -----------------------------------------------------------------------------


def test_who_starts_after_its_starter_ended_ends_too():
    starter = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, starter.pid, os.WEXITED | os.WNOWAIT)  # ended, and not buried yet

    late = os.fork()
    if late == 0:
        die_with_starter(starter.pid)
        os._exit(0)

    assert os.WTERMSIG(os.waitpid(late, 0)[1]) == signal.SIGKILL
    starter.wait()


def test_a_stopped_worker_is_given_up_after_its_heartbeat_time():
    made = AsynchronousDataAccessor(Misbehaving("SIGSTOP"), sharing_strategy=FORK, heartbeat=1.0)
    start = time.monotonic()

    with pytest.raises(WorkerStalled, match=r"no sign of life for 1 s while loading item 2"):
        list(made)

    assert time.monotonic() - start < 4
    assert wait_until_gone([made._link.pid]) == []


def test_a_worker_stuck_in_user_code_is_given_up_and_shows_where_it_was():
    made = AsynchronousDataAccessor(Misbehaving("sleep"), sharing_strategy=FORK, timeout=1.0)

    with pytest.raises(WorkerStalled, match=r"toy_datasets\.py") as caught:
        list(made)

    assert "delivered nothing for 1 s" in str(caught.value)
    assert "timeout" in caught.value.fix
    assert wait_until_gone([made._link.pid]) == []


def test_a_slow_worker_is_warned_about_with_its_stack(caplog):
    made = AsynchronousDataAccessor(
        Misbehaving("sleep"), sharing_strategy=FORK, heartbeat=0.6, timeout=2.0
    )

    with pytest.raises(WorkerStalled):
        list(made)

    assert caplog.text.count("has been loading item 2 of epoch 0") == 1
    assert "toy_datasets.py" in caplog.text


# --- the parent ends ------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from tests.unit.data.toy_datasets import Counting, Misbehaving
from pantile.data import AsynchronousDataAccessor, DataLoader
from pantile.data.lifetime import die_with_starter
from pantile.enums import DataLoaderMode, SharingStrategy
from pantile.options import Options

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

if __name__ == "__main__":
{body}
"""


def start_script(tmp_path, body):
    path = tmp_path / "script with space.py"
    path.write_text(
        SCRIPT.format(root=str(ROOT), body=textwrap.indent(textwrap.dedent(body), "    "))
    )
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process, seconds=60):
    try:
        return process.communicate(timeout=seconds)
    finally:
        process.kill()


LOOPING = """
    loader = DataLoader(
        Options(), Counting(10**6), num_workers={workers}, mode=DataLoaderMode.Async,
        async_options=dict(sharing_strategy=SharingStrategy.{strategy}),
    )
    for i, x in enumerate(loader):
        if i == 10:
            print("running", flush=True)
"""


@pytest.mark.parametrize("strategy", ["SharedMemory", "Fork", "ForkServer"])
def test_no_process_outlives_a_parent_that_is_killed(tmp_path, strategy):
    script = start_script(tmp_path, LOOPING.format(workers=1, strategy=strategy))
    assert script.stdout.readline() == "running\n"
    below = children_of(script.pid)
    assert below

    script.kill()

    assert wait_until_gone(below) == []
    finish(script)


@pytest.mark.parametrize("strategy", ["Fork", "ForkServer"])
def test_ctrl_c_ends_everything_with_one_traceback(tmp_path, strategy):
    script = start_script(tmp_path, LOOPING.format(workers=1, strategy=strategy))
    assert script.stdout.readline() == "running\n"
    below = children_of(script.pid)

    for pid in [script.pid, *below]:  # as a terminal does it
        os.kill(pid, signal.SIGINT)

    start = time.monotonic()
    _, errors = finish(script)
    assert time.monotonic() - start < 3
    assert errors.count("Traceback") == 1
    assert "KeyboardInterrupt" in errors
    assert wait_until_gone(below) == []


def test_interrupting_only_the_worker_prints_nothing(tmp_path):
    script = start_script(
        tmp_path,
        """
        made = AsynchronousDataAccessor(Counting(100))
        os.kill(made._link.pid, signal.SIGINT)
        print(sum(int(x) for x in made))
        """,
    )

    out, errors = finish(script)

    assert (out, errors, script.returncode) == ("4950\n", "", 0)


def test_a_script_may_end_without_terminating_its_loaders(tmp_path):
    script = start_script(
        tmp_path,
        """
        kept = [AsynchronousDataAccessor(Counting(100)) for _ in range(2)]
        print(*(a._link.pid for a in kept))
        next(iter(kept[0]))
        """,
    )

    out, errors = finish(script)

    assert (errors, script.returncode) == ("", 0)
    assert wait_until_gone([int(pid) for pid in out.split()]) == []


def test_a_script_without_a_guard_is_told_so(tmp_path):
    path = tmp_path / "unguarded.py"
    path.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pantile.data import AsynchronousDataAccessor\n"
        "from tests.unit.data.toy_datasets import Counting\n"
        "AsynchronousDataAccessor(Counting(3))\n"
    )

    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr


def test_a_loader_is_refused_after_a_fork_instead_of_hanging():
    made = AsynchronousDataAccessor(Counting(10), sharing_strategy=FORK)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            list(made)
        except DataError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert b"after a fork" in os.read(reader, 1000)
    assert len(list(made)) == 10
    made.terminate()


def test_the_worker_of_a_loader_that_is_dropped_ends_without_the_garbage_collector():
    gc.disable()
    try:
        loader = DataLoader(
            Options(),
            Counting(100),
            mode=DataLoaderMode.Async,
            async_options={"sharing_strategy": FORK},
        )
        pid = loader._accessor._link.pid
        del loader
        assert wait_until_gone([pid]) == []
    finally:
        gc.enable()


# --- starting and stopping, many times ------------------------------------------------------------


def cycle(number: int) -> None:
    """Start a worker, use it or not, end it in one of several ways; nothing may be left."""
    choose = random.Random(number)
    settings = {
        "sharing_strategy": choose.choice([FORK, SharingStrategy.ForkServer]),
        "early_preload": number % 2 == 0,
    }
    if number % 5 == 4:  # torch's workers below the worker go with it
        made = DataLoader(
            Options(),
            Counting(20),
            num_workers=2,
            mode=DataLoaderMode.Async,
            async_options=settings,
        )
        pid = made._accessor._link.pid
    else:
        source = choose.choice([Counting(20), CountingStream(20), Misbehaving("sleep", good=5)])
        made = AsynchronousDataAccessor(source, **settings)
        pid = made._link.pid
    below = [pid, *children_of(pid)]
    iteration = iter(made)
    for _ in range(choose.randrange(5)):
        next(iteration)
    start = time.monotonic()
    way = choose.choice(["terminate", "drop", "kill", "stop"])
    if way == "drop":
        del made, iteration
    elif way == "terminate":
        made.terminate()
    else:
        os.kill(pid, signal.SIGKILL if way == "kill" else signal.SIGSTOP)
        made.terminate()
    assert wait_until_gone(below, 3.0) == [], way
    assert time.monotonic() - start < 3, way


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_cycles(count: int) -> None:
    cycle(0)  # starts the fork server, which stays
    gc.collect()
    before = open_descriptors()

    for number in range(count):
        cycle(number)

    gc.collect()
    assert open_descriptors() <= before


def test_15_cycles_of_starting_and_ending_workers_leave_nothing_behind():
    run_cycles(15)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_500_cycles_of_starting_and_ending_workers_leave_nothing_behind():
    run_cycles(500)
