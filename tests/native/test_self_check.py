"""Code that computes something else is found when it is compiled, and not used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import poptorch


def _miscompiling(folder: Path) -> str:
    """A compiler that gets one operator of our templates wrong; Inductor's code has none of it."""
    compiler = shutil.which("g++") or "c++"
    path = folder / "wrong-c++"
    path.write_text(f"""#!/bin/sh
for name in "$@"; do
    case "$name" in *.cpp) sed -i 's/= op_tanh(/= op_sigmoid(/' "$name" ;; esac
done
exec "{compiler}" "$@"
""")
    path.chmod(0o755)
    return str(path)


class Curved(torch.nn.Module):
    """One operator that the compiler will get wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The hyperbolic tangent, twice."""
        return torch.tanh(x) * 2


def test_a_wrong_program_is_found_and_replaced_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", _miscompiling(tmp_path))
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "cache"))
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    x = torch.linspace(-3, 3, 70).view(7, 10)

    model = poptorch.inferenceModel(Curved(), options)
    model(x)  # on the reference engine
    result = model(x)

    torch.testing.assert_close(result, torch.tanh(x) * 2)
    [facts] = model.nativeDecisions()
    assert facts["lowering"] == "inductor"
    assert "is not what the reference engine computes" in facts["why"]
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "our kernels cannot be used" in warning


def test_a_right_program_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "cache"))
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    x = torch.linspace(-3, 3, 70).view(7, 10)

    model = poptorch.inferenceModel(Curved(), options)
    model(x)
    model(x)

    [facts] = model.nativeDecisions()
    assert facts["lowering"] == "kernels"
