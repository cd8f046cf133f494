"""The engine example: it trains, compares, and says how to be called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "native" / "compare_engines.py"


def run(*engines: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *engines]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def compared() -> subprocess.CompletedProcess[str]:
    return run("reference", "reference")


def test_an_engine_agrees_with_itself_to_the_last_bit(
    compared: subprocess.CompletedProcess[str],
) -> None:
    assert compared.returncode == 0, compared.stderr
    assert "difference between the losses of an update: 0.0e+00" in compared.stdout


def test_the_model_learns(compared: subprocess.CompletedProcess[str]) -> None:
    first, last = re.findall(r"loss (\S+) -> (\S+),", compared.stdout)[0]

    assert float(last) < float(first) / 5


def test_a_wrong_number_of_engines_is_explained() -> None:
    done = run("native")

    assert done.returncode == 1
    assert "usage:" in done.stderr
