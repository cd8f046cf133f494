"""The example with graphs: it packs, trains, and tells graphs apart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "geometric" / "classify_graphs.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packed() -> str:
    return run("--epochs", "5")


def test_the_network_tells_graphs_apart_far_better_than_guessing(packed: str) -> None:
    share = re.search(r"([\d.]+)% of the test graphs", packed)

    assert share is not None
    assert float(share[1]) > 80


def test_packing_fills_batches_better_than_padding(packed: str) -> None:
    padded = run("--epochs", "0", "--pad")

    shares = [int(re.match(r"(\d+)% of the nodes", text)[1]) for text in (packed, padded)]
    assert shares[0] > shares[1] + 15
