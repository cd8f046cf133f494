"""`pantile run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pantile.cli.main import main
from pantile.cli.run import imported_by


def test_a_script_gets_its_arguments_and_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pantile"])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text("import sys\nimport beside\nprint(__name__, beside.name, sys.argv[1:])\n")

    assert main(["run", str(script), "--steps", "3"]) == 0
    assert capsys.readouterr().out == "__main__ beside ['--steps', '3']\n"


def test_a_missing_script_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no_such_script.py"]) == 1
    assert "no_such_script.py is not a file" in capsys.readouterr().err


def test_imports_are_found_anywhere_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy.linalg\nfrom . import paddle\ndef f():\n    from torch import nn\n"
    )

    assert imported_by(script) == {"numpy", "torch"}
    script.write_text("not python at all")
    assert imported_by(script) == set()
