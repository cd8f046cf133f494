"""`pantile check`: what works here: trainings on one and several IPUs, engines, front-ends."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import nn

import pantile
from pantile.errors import Error
from pantile.options import Options


@dataclass(frozen=True)
class Finding:
    """One thing that was tried."""

    what: str
    works: bool
    detail: str


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pantile check`."""
    parser = commands.add_parser("check", help="try what works on this machine")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--quick", action="store_true", help="do not compile native code")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print what works; the status is 1 if something that should work does not."""
    findings = list(checks(quick=parsed.quick))
    if parsed.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            missing = "absent " if finding.what.startswith("optional") else "FAILED "
            print(f"{'ok     ' if finding.works else missing} {finding.what:34} {finding.detail}")
    needed = [f for f in findings if not f.what.startswith("optional")]
    if not parsed.json:
        good = all(f.works for f in needed)
        print("Pantile works here." if good else "Pantile does not work here: see above.")
    return int(not all(f.works for f in needed))


def checks(*, quick: bool = False) -> list[Finding]:
    """Everything that is tried."""
    found = [
        Finding("python", sys.version_info >= (3, 11), platform.python_version()),
        Finding("torch", torch.__version__.startswith("2.13"), torch.__version__),
    ]
    compiler = shutil.which("g++") or shutil.which("clang++") or ""
    found.append(
        Finding("C++ compiler", bool(compiler), compiler or "none: the engine is reference")
    )
    found += [
        _tried(f"training on {ipus} IPUs, reference", partial(_train, "reference", ipus))
        for ipus in (1, 4)
    ]
    if compiler and not quick:
        found.append(_tried("training on 1 IPUs, native", partial(_train, "native", 1)))
    for package in ("lightning", "paddle"):
        there = importlib.util.find_spec(package) is not None
        found.append(
            Finding(f"optional: {package}", there, "installed" if there else "not installed")
        )
    return found


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except (Error, RuntimeError, OSError) as error:
        return Finding(what, False, str(error).splitlines()[0])


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict, and the error."""
        out = self.layer(x)
        return out, nn.functional.mse_loss(out, y)


def _train(engine: str, replicas: int) -> str:
    """A few steps of a linear fit: the error must shrink."""
    torch.manual_seed(0)
    model = _Net()
    options = Options().replicationFactor(replicas).showCompilationProgressBar(False)
    options.engine(engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = pantile.trainingModel(model, options, optimizer=optimizer)
    x = torch.randn(16 * replicas, 8)
    y = x.sum(1, keepdim=True)
    losses = [float(torch.as_tensor(step(x, y)[1]).mean()) for _ in range(20)]
    step.destroy()
    if not losses[-1] < 0.5 * losses[0]:
        raise Error(
            f"the error went from {losses[0]:.3g} to {losses[-1]:.3g}",
            fix="run with PANTILE_ENGINE=reference, and report this",
        )
    return f"error {losses[0]:.3g} -> {losses[-1]:.3g}"
