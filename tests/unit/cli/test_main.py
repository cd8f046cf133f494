"""The `pantile` command as a whole."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from pantile.cli.main import main


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    assert "cache" in capsys.readouterr().out


def test_version_names_pantile_and_torch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert re.match(r"pantile \d+\.\d+\.\d+ ", shown)
    assert torch.__version__ in shown


@pytest.mark.parametrize("arguments", [[], ["cook"], ["cache"], ["cache", "list", "--fast"]])
def test_wrong_usage_is_status_2_and_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage: pantile" in capsys.readouterr().err


def test_it_runs_as_a_module_into_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "pantile.cli.main", "cache", "path"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.returncode, errors) == (0, b"")
