"""The MNIST example: its data is what it says, and it trains, saves and reloads."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist"
DATA = EXAMPLE / "data"


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example, so that its output does not land in the checkout."""
    ignored = shutil.ignore_patterns("out", "__pycache__")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "a path with spaces", ignore=ignored))


def test_data_files_have_the_digests_their_readme_names() -> None:
    rows = re.findall(r"\| `(\S+\.gz)` \| `(\w{64})` \|", (DATA / "README.md").read_text())

    assert len(rows) == 4
    for name, digest in rows:
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


def test_data_takes_less_than_four_megabytes() -> None:
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 4_000_000


@pytest.mark.parametrize(("part", "count"), [("train", 15_000), ("t10k", 2_500)])
def test_idx_headers_agree_with_the_contents(part: str, count: int) -> None:
    images = gzip.decompress((DATA / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / f"{part}-labels-idx1-ubyte.gz").read_bytes())

    assert struct.unpack(">4I", images[:16]) == (2051, count, 28, 28)
    assert struct.unpack(">2I", labels[:8]) == (2049, count)
    assert (len(images), len(labels)) == (16 + count * 28 * 28, 8 + count)
    assert set(labels[8:]) == set(range(10))


def test_the_tutorial_fits_on_a_few_screens() -> None:
    assert len((EXAMPLE / "train_mnist.py").read_text().splitlines()) < 120


def test_help_names_every_flag(example: Path) -> None:
    shown = run(example, "train_mnist.py", "--help")

    assert shown.returncode == 0
    for flag in ("data", "epochs", "batch-size", "replicas", "device-iterations", "lr", "seed"):
        assert f"--{flag}" in shown.stdout


def test_reloading_before_training_says_what_to_do(example: Path) -> None:
    refused = run(example, "reload_and_predict.py")

    assert refused.returncode == 1
    assert "run train_mnist.py first" in refused.stderr


def test_one_epoch_trains_and_the_saved_weights_predict_the_same(example: Path) -> None:
    trained = run(example, "train_mnist.py", "--epochs", "1")
    assert trained.returncode == 0, trained.stderr
    reloaded = run(example, "reload_and_predict.py")

    summary = json.loads((example / "out" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.9
    assert "Net (training)" in (example / "out/report/training/report.html").read_text()
    assert reloaded.returncode == 0, reloaded.stdout + reloaded.stderr


@pytest.mark.slow
def test_the_demo_reaches_the_promised_accuracy(example: Path) -> None:
    trained = run(example, "train_mnist.py")

    assert trained.returncode == 0, trained.stderr
    assert json.loads((example / "out" / "summary.json").read_text())["test_accuracy"] >= 0.975
