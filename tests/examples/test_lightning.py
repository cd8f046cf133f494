"""The Lightning examples run and say what their texts promise."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

import pytest
from tests.clients.torchvision_ops import declare_missing_ops

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lightning"


def run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    declare_missing_ops()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("first_run", ["accuracy 0.9", "64 updates of 32 samples"]),
        ("precision", ["32-true    loss", "loss scale 65536", "16-true    loss"]),
        ("pipelining", ["32 calls made 64 updates"]),
        ("gan", ["draws numbers around 3", "after 256 updates"]),
        ("resume", ["the same weights"]),
        ("reports", ["split steps because of accumulate_grad_batches=2", "training: "]),
    ],
)
def test_an_example_does_what_it_says(
    name: str,
    promised: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = run(name, tmp_path, monkeypatch, capsys)

    assert all(text in printed for text in promised), printed
