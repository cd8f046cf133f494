"""Random small models, trained by our own kernels: as good as eager, and repeatable."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.kernels.random_models import random_model, random_optimizer
from tests.native.runs import runs_natively

import poptorch
from pantile.lowering.kernels.refused import Refused

IN_CI = 8
IN_ALL = 1000


@pytest.fixture(autouse=True)
def _own_kernels_only(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cache: Path = tmp_path_factory.getbasetemp() / "random-models"
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(cache))
    monkeypatch.setenv("PANTILE_LOWERING", "kernels")
    monkeypatch.setenv("PANTILE_TUNE", "0")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def eager_step(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Loss, outputs, parameters and buffers after two steps."""
    model, x, target = random_model(seed)
    model.to(dtype)
    optimizer = random_optimizer(seed, model.parameters())
    given = [v.to(dtype) if v.is_floating_point() else v for v in (x, target)]
    for _ in range(2):
        optimizer.zero_grad()
        out, loss = model(*given)
        loss.backward()
        optimizer.step()
    return {"out": out.detach(), "loss": loss.detach(), **model.state_dict()}


def our_step(seed: int, threads: int) -> dict[str, torch.Tensor]:
    """The same, the second step by our kernels; Refused if they have no code for it.

    The first one makes the state of the optimizer: it is always the reference engine's.
    """
    torch.set_num_threads(threads)
    model, x, target = random_model(seed)
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    optimizer = random_optimizer(seed, model.parameters())
    training = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    try:
        training(x, target)
        out, loss = training(x, target)
        if not runs_natively(training):
            raise Refused(f"model {seed} is left to others")
        training.copyWeightsToHost()
        state = copy.deepcopy(model.state_dict())
    finally:
        training.destroy()
    return {"out": out.detach().clone(), "loss": loss.detach().clone(), **state}


def check_step(seed: int, ours: dict[str, torch.Tensor]) -> None:
    own, best = eager_step(seed, torch.float32), eager_step(seed, torch.float64)
    for name, value in best.items():
        if not value.is_floating_point():
            assert torch.equal(ours[name], own[name]), (seed, name)
            continue
        allowed = 2 * (own[name].double() - value).abs().max() + 1e-6
        error = (ours[name].double() - value).abs().max()
        assert error <= allowed, f"model {seed}, {name}: {error:.3g}, allowed {allowed:.3g}"


def check_model(seed: int, *, repeats: bool) -> None:
    """One thread, two threads, and the same again."""
    ours = our_step(seed, 1)
    check_step(seed, ours)
    if not repeats:
        return
    for threads in (1, 2):
        first, second = our_step(seed, threads), our_step(seed, threads)
        assert all(torch.equal(first[name], second[name]) for name in first), seed
        check_step(seed, first)


@pytest.mark.parametrize("seed", range(IN_CI))
def test_a_random_model_is_trained_as_well_as_by_eager(seed):
    check_model(seed, repeats=seed == 0)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand_random_models_are_trained_as_well_as_by_eager():
    wrong, refused = [], {}
    for seed in range(IN_CI, IN_CI + IN_ALL):
        try:
            check_model(seed, repeats=seed % 10 == 0)
        except Refused as error:
            refused[seed] = str(error)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
    assert len(refused) < IN_ALL / 5, refused
