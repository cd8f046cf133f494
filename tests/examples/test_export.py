"""The export example: one process trains and exports, another one loads and goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "export"


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_loading_before_exporting_says_what_to_do(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "copy", ignore=shutil.ignore_patterns("out"))

    refused = run(folder, "load_and_use.py")

    assert refused.returncode == 1
    assert "run train_and_export.py first" in refused.stderr


def test_files_of_one_process_serve_another(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "copy", ignore=shutil.ignore_patterns("out"))

    exported = run(folder, "train_and_export.py")
    assert exported.returncode == 0, exported.stderr
    used = run(folder, "load_and_use.py")

    assert used.returncode == 0, used.stderr
    assert "wrote serving.poptorch" in exported.stdout
    assert "classified as [0, 1, 2]" in used.stdout
    assert "trained on" in used.stdout
