"""Fabric: the user's loop around a compiled step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from tests.lightning.models import FEATURES, loader
from torch import nn

import pantile.lightning  # noqa: F401 - registers

pytestmark = pytest.mark.usefixtures("reference")


def train(
    accelerator: str, precision: Any = "32-true", devices: int = 1, batch_size: int = 4
) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    fabric = Fabric(accelerator=accelerator, devices=devices, precision=precision)
    fabric.launch()
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, optimizer = fabric.setup(model, optimizer)

    def step(batch: Any) -> dict[str, torch.Tensor]:
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        return {"loss": loss}

    run = fabric.strategy.compile_step(step) if accelerator == "ipu" else step
    losses = []
    for batch in fabric.setup_dataloaders(loader(22, batch_size)):
        losses.append(float(run(batch)["loss"]))
        scheduler.step()
    return model, losses


def test_a_compiled_step_trains_like_the_plain_one() -> None:
    model, losses = train("ipu")

    expected, expected_losses = train("cpu")
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)


def test_a_compiled_step_in_mixed_precision_trains_like_the_plain_one() -> None:
    model, losses = train("ipu", "bf16-mixed")

    expected, expected_losses = train("cpu", "bf16-mixed")
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_compiled_step_sees_the_batches_of_all_replicas() -> None:
    model, losses = train("ipu", devices=4, batch_size=2)

    expected, expected_losses = train("cpu", batch_size=8)
    assert len(losses) == 3
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)


def test_a_loop_that_is_not_compiled_says_so(caplog: pytest.LogCaptureFixture) -> None:
    fabric = Fabric(accelerator="ipu", devices=1)
    model = fabric.setup(nn.Linear(2, 1))

    fabric.backward(model(torch.ones(1, 2)).sum())

    assert "Compile it with fabric.strategy.compile_step" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "16-mixed"}, "must be one of: 32-true"),
        ({"precision": "64-true"}, "must be one of: 32-true"),
    ],
)
def test_what_fabric_cannot_do_here_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fabric(accelerator="ipu", **{"devices": 1, **arguments})
