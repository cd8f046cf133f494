"""Precision flags: what is computed in half, and how a loss is scaled."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from tests.lightning.models import Classifier, Gan, Optimizer, loader
from tests.lightning.test_parity import Case, assert_same, fit

from pantile.lightning import IPUPrecision, IPUStrategy

pytestmark = pytest.mark.usefixtures("reference")


@pytest.mark.parametrize("flag", [16, pytest.param("16-mixed", marks=pytest.mark.slow)])
def test_mixed_half_trains_with_a_scaled_loss(flag: Any) -> None:
    module, trainer = fit(Case(), "ipu", precision=flag)

    exact, _ = fit(Case(), "cpu")
    assert trainer.precision == "16-mixed"
    assert trainer.precision_plugin.scaler.get_scale() == 65536.0
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    torch.testing.assert_close(module.state_dict(), exact.state_dict(), rtol=0.02, atol=0.01)


def test_gradients_below_the_range_of_half_survive_because_they_are_scaled() -> None:
    filled: list[float] = []

    class Small(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * 1e-7

        def on_after_backward(self) -> None:
            filled.append(float((self.net[0].weight.grad != 0).float().mean()))

    fit(Case(Small), "ipu", precision="16-mixed", max_epochs=1)

    assert min(filled) > 0.9


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    class Large(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss * (1e38 if batch_idx == 0 else 1.0)

    pl.seed_everything(3)
    before = Large().state_dict()
    case = Case(Large, train=partial(loader, 4))

    module, trainer = fit(case, "ipu", precision="16-mixed", max_epochs=1)

    assert trainer.precision_plugin.scaler.get_scale() == 32768.0
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("flag", [pytest.param("32-true", marks=pytest.mark.slow), 16])
def test_a_halved_model_is_computed_in_half(flag: Any) -> None:
    def halved() -> Any:
        return Optimizer(partial(torch.optim.SGD, lr=0.1)).half()

    module, trainer = fit(Case(halved), "ipu", precision=flag)

    expected, _ = fit(
        Case(lambda: Optimizer(partial(torch.optim.SGD, lr=0.1))), "cpu", precision="16-true"
    )
    assert trainer.precision == "16-true"
    torch.testing.assert_close(module.state_dict(), expected.state_dict(), rtol=1e-3, atol=1e-4)


def test_a_strategy_alone_keeps_the_precision_that_was_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = pl.Trainer(strategy=IPUStrategy(), precision="16-mixed", logger=False)

    assert trainer.precision == "16-mixed"


def test_an_unsupported_precision_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(ValueError, match=r"is not supported. `precision` must be one of: 32-true"):
        pl.Trainer(accelerator="ipu", precision="64-true")


def mixed_half_on_the_cpu() -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", growth_interval=3))


class Overflows(Gan):
    """The first optimizer's gradients are not finite in one step."""

    def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        turn = (
            self.trainer.fit_loop.epoch_loop.total_batch_idx == 4 and self.g[0].weight.requires_grad
        )
        super().manual_backward(loss * (1e38 if turn else 1.0), *args, **kwargs)


@pytest.mark.parametrize("kind", [Gan, Overflows])
def test_manual_optimisation_scales_the_loss_of_each_optimizer(kind: Any) -> None:
    theirs = fit(Case(kind), "cpu", plugins=[mixed_half_on_the_cpu()])

    plugin = IPUPrecision("16-mixed")
    plugin.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    mine = fit(Case(kind), "ipu", plugins=[plugin])

    assert mine[1].strategy.program_times[0].name == "training_step (manual)"
    assert plugin.scaler.state_dict() == theirs[1].precision_plugin.scaler.state_dict()
    assert_same(mine, theirs, 1e-6)
