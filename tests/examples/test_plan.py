"""The planning example: it plans, and what it prints is Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "plan" / "plan_transformer.py"


def test_the_example_prints_a_plan_and_lines_to_paste():
    command = [sys.executable, str(SCRIPT), "2", "4"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stderr
    shown, lines = done.stdout.split("Paste after the model is made:\n")
    assert "Bow-Pod4" in shown
    assert "samples/s" in shown
    compile(lines, "lines to paste", "exec")
