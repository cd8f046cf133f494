"""Training steps with operators our kernels lack: these are torch's, all else is ours."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.native.runs import assert_close, options, run_script, runs_natively, seeded
from torch import nn

import poptorch


class Ridge(nn.Module):
    """A regression that is solved in the middle, batch statistics before and a layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        hidden = torch.tanh(self.norm(self.first(x)))
        weight = torch.linalg.solve(hidden.t() @ hidden + torch.eye(6), hidden.t() @ target)
        out = hidden @ weight + self.last(hidden)
        return out, F.mse_loss(out, target)


class Whitened(nn.Module):
    """Convolutions, and a Cholesky factor whose gradient needs more calls."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.last = nn.Conv2d(1, 16, 3), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        hidden = torch.relu(self.images(x.view(-1, 1, 2, 2).repeat(1, 1, 3, 3))).mean((2, 3))
        factor = torch.linalg.cholesky(hidden.t() @ hidden + torch.eye(16))
        out = self.last(torch.linalg.solve_triangular(factor, hidden.t(), upper=False).t())
        return out, F.mse_loss(out, target)


class Waves(nn.Module):
    """A convolution by Fourier transforms: numbers of a type that no kernel knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.filter = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        spectrum = torch.fft.rfft(self.first(x)) * torch.view_as_complex(self.filter)
        out = self.last(F.gelu(torch.fft.irfft(spectrum, n=8)))
        return out, F.mse_loss(out, target)


class Plain(nn.Module):
    """Nothing that kernels lack."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        out = self.last(torch.tanh(self.first(x)))
        return out, F.mse_loss(out, target)


class Orthogonal(torch.optim.Optimizer):
    """Steps along the orthogonal factor of the momentum: a decomposition in the update."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].mul_(0.9).add_(weight.grad)
                direction = state["momentum"]
                if weight.dim() == 2:
                    left, _, right = torch.linalg.svd(direction, full_matrices=False)
                    direction = left @ right
                weight.add_(direction, alpha=-group["lr"])


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def data(rows: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=draw), torch.randn(rows, 3, generator=draw)


def eager_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, accumulation: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Results of eager training on the same micro-batch of 8 rows again and again."""
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulation):
            out, loss = model(*data(8))
            (loss / accumulation).backward()
        optimizer.step()
        yield out.detach(), loss.detach()


def lowerings(executor: poptorch.PoplarExecutor) -> list[str]:
    return [facts["lowering"] for facts in executor.nativeDecisions()]


@pytest.mark.parametrize(
    ("make", "optimizer", "operator"),
    [
        (Ridge, adam, "aten._linalg_solve_ex.default"),
        (Whitened, adam, "aten.linalg_cholesky_ex.default"),
        (Waves, adam, "aten._fft_r2c.default"),
        (Plain, Orthogonal, "aten._linalg_svd.default"),
    ],
)
def test_training_with_calls_is_eager_training(
    make: Callable[[], nn.Module], optimizer: Any, operator: str
) -> None:
    model = seeded(make)
    eager = copy.deepcopy(model)
    step = poptorch.trainingModel(model, options(deviceIterations=2), optimizer(model.parameters()))
    expected = list(eager_steps(eager, optimizer(eager.parameters()), 8))

    x, target = data(8)
    for call in range(4):
        out, loss = step(x.repeat(2, 1), target.repeat(2, 1))
        assert_close(loss, expected[2 * call + 1][1], rtol=1e-4)
        assert_close(out, expected[2 * call + 1][0], rtol=1e-3, atol=1e-4)

    assert_close(model.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
    assert runs_natively(step)
    assert lowerings(step) == ["segments"]
    (facts,) = step.nativeDecisions()
    assert operator in {call["operator"] for call in facts["outside"]}


def test_gradients_are_accumulated_over_calls_and_replicas() -> None:
    """The body of a micro-batch has calls, and so has the update."""
    model = seeded(Ridge)
    eager = copy.deepcopy(model)
    chosen = options(accumulation=2, deviceIterations=2)
    step = poptorch.trainingModel(model, chosen, Orthogonal(model.parameters()))
    expected = list(eager_steps(eager, Orthogonal(eager.parameters()), 6, accumulation=2))

    x, target = data(8)
    for call in range(3):
        _, loss = step(x.repeat(4, 1), target.repeat(4, 1))
        assert_close(loss, expected[2 * call + 1][1], rtol=1e-3, atol=1e-4)

    assert lowerings(step) == ["segments", "segments"]


def test_replicas_call_at_the_same_time() -> None:
    made = []
    for engine in ("native", "reference"):
        model = seeded(Whitened)
        chosen = options(engine, replicationFactor=2, deviceIterations=3)
        made.append(poptorch.trainingModel(model, chosen, adam(model.parameters())))
    x, target = data(8 * 6)

    for _ in range(3):
        results, expected = (step(x, target) for step in made)
        assert_close(results, expected, rtol=1e-3, atol=1e-4)

    assert lowerings(made[0])[0] == "segments"


class Noisy(nn.Module):
    """Dropout before a call and after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.special.i1(F.dropout(x, 0.5)), 0.25)


def test_random_numbers_are_those_of_every_native_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = {}
    for lowering in ("segments", "inductor"):
        monkeypatch.setenv("PANTILE_LOWERING", lowering)
        model = poptorch.inferenceModel(Noisy(), options(randomSeed=5, deviceIterations=3))
        x = torch.ones(3, 400)
        model(x)
        drawn[lowering] = model(x)
        assert lowerings(model) == [lowering]

    assert torch.equal(drawn["segments"] == 0, drawn["inductor"] == 0)
    assert_close(drawn["segments"], drawn["inductor"])
    assert not torch.equal(drawn["segments"][0], drawn["segments"][1])


def test_a_nan_goes_through_a_call_as_in_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.special.i1(x * 2)) + torch.median(x, dim=1).values[:, None]

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    x[1, 2], x[2, 3] = float("nan"), float("inf")
    model = poptorch.inferenceModel(Calls(), options())

    for _ in range(3):
        torch.testing.assert_close(model(x), function(x), equal_nan=True)
    assert lowerings(model) == ["segments"]


def test_a_call_that_fails_is_eagers_error_and_the_next_step_goes_on() -> None:
    class Factor(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x * 2) + 1

    good, bad = torch.eye(3), -torch.eye(3)
    model = poptorch.inferenceModel(Factor(), options())
    for _ in range(2):
        expected = model(good)

    with pytest.raises(RuntimeError, match=r"linalg\.cholesky"):
        model(bad)

    assert torch.equal(model(good), expected)
    assert lowerings(model) == ["segments"]


class ManyCalls(nn.Module):
    """More operators without a rule than are worth a call each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.special.i1(x * 0.5) + 0.1
        return x


@pytest.mark.parametrize(("asked", "lowering"), [("", "inductor"), ("segments", "segments")])
def test_many_calls_are_left_to_inductor_unless_they_are_asked_for(
    asked: str, lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_LOWERING", asked)
    model, x = poptorch.inferenceModel(ManyCalls(), options()), torch.ones(4)
    model(x)

    assert_close(model(x), ManyCalls()(x))
    (facts,) = model.nativeDecisions()
    assert facts["lowering"] == lowering
    assert "no rule for aten.special_i1.default" in facts["why"]


def test_kernels_alone_leave_such_a_model_to_the_reference_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PANTILE_LOWERING", "kernels")
    model, x = poptorch.inferenceModel(Noisy().eval(), options()), torch.ones(4)
    for _ in range(2):
        model(x)

    assert model.nativeDecisions() == []
    assert "no rule for aten.special_i1.default" in caplog.text


TRAIN = """
import sys
import torch
torch.set_num_threads(2)
from tests.native.runs import options, seeded
from tests.native.test_segments import Whitened, adam, data
import poptorch
model = seeded(Whitened)
chosen = options(deviceIterations=2).enableExecutableCaching(sys.argv[1])
step = poptorch.trainingModel(model, chosen, adam(model.parameters()))
x, target = data(16)
for _ in range(3):
    loss = step(x, target)[1]
(facts,) = step.nativeDecisions()
sums = (p.double().sum().item().hex() for p in model.parameters())
print(facts["lowering"], loss.item().hex(), *sums)
"""


def test_a_second_process_takes_the_program_from_the_cache_and_has_the_same_bits(
    tmp_path: Path,
) -> None:
    folder, log = str(tmp_path / "cache"), tmp_path / "log"
    noted = {"POPTORCH_LOG_LEVEL": "DEBUG", "POPTORCH_LOG_DEST": str(log)}

    first, second = (run_script(TRAIN, folder, **noted) for _ in range(2))

    assert first == second and first.startswith("segments ")
    lines = log.read_text().splitlines()
    assert sum(line.endswith(": compiled") for line in lines) == 1
    assert sum(line.endswith(": found") for line in lines) == 1


def test_the_report_tells_what_ran_where_and_why(tmp_path: Path) -> None:
    chosen = options()
    chosen.enableProfiling(str(tmp_path))
    model = seeded(Ridge)
    step = poptorch.trainingModel(model, chosen, adam(model.parameters()))
    for _ in range(2):
        step(*data(8))
    step.detachFromDevice()

    report = json.loads((tmp_path / "training" / "report.json").read_text())
    (program,) = report["host"]["programs"]

    assert program["lowering"] == "segments"
    assert "no rule for aten._linalg_solve_ex.default" in program["why"]
    assert program["kernels"] > 3
    calls = {call["operator"]: call for call in program["outside"]}
    assert calls["aten._linalg_solve_ex.default"] == {
        "operator": "aten._linalg_solve_ex.default",
        "why": "no rule for aten._linalg_solve_ex.default",
        "calls": 1,
    }
