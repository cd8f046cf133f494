"""The benchmark of loaders runs, and measures what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.loading import CASES, compare, cpu_seconds, ratio

ROOT = Path(__file__).resolve().parents[2]


def test_both_loaders_are_timed_in_every_round() -> None:
    torchs, ours = compare(CASES[5], workers=0, rounds=2, share=0.02)

    assert [len(times) for times in (torchs.wall, torchs.cpu, ours.wall, ours.cpu)] == [2] * 4
    assert min(*torchs.wall, *ours.wall) > 0


def test_the_time_of_processes_below_is_counted() -> None:
    work = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    before = cpu_seconds()
    command = [sys.executable, "-c", work]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        spent = cpu_seconds() - before
        child.communicate(os.linesep.encode())

    assert spent >= 0.4


def test_a_ratio_above_1_means_ours_is_faster() -> None:
    assert ratio([2.0, 4.0, 9.0], [1.0, 1.0, 3.0]) == 3.0


def test_a_table_is_printed() -> None:
    command = [sys.executable, "-m", "benchmarks.loading", "--quick", "--rounds", "1"]
    options = ["--workers", "0", "--only", "tokens 512"]

    done = subprocess.run(command + options, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1].startswith("| tokens 512 | 256 | 0 |")
