"""The pipeline example: it prints a schedule, learns, and compares to the last bit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pantile.schedule import parse_schedule, validate

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "pipeline" / "train_in_stages.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_it_trains_in_stages_to_the_bits_of_the_network_in_one_piece():
    done = run("3", "6")

    assert done.returncode == 0, done.stderr
    assert "to the last bit: yes" in done.stdout
    first, last = re.findall(r"loss (\S+) -> (\S+) after", done.stdout)[0]
    assert float(last) < float(first)
    schedule = parse_schedule(done.stdout.partition("\n\n")[0])
    validate(schedule)
    assert (schedule.stages, schedule.micro_batches) == (3, 6)


def test_wrong_arguments_are_explained():
    done = run("three")

    assert done.returncode == 2
    assert "python train_in_stages.py 3 6" in done.stdout
