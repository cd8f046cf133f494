"""Options about precision on the native engine: the numbers of the reference engine, or it steps
aside with one message."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.native.runs import Net, batch, options, runs_natively, seeded
from torch import nn

import poptorch
from poptorch.enums import OutputMode


def halved() -> nn.Module:
    return seeded(Net).half()


def half_batch(micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, labels = batch(micro_batches)
    return x.half(), labels


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=10.0)


def test_the_loss_scale_adapts_in_a_loop_outside_python() -> None:
    found = {}
    for engine in ("native", "reference"):
        model = halved()
        made = options(engine, deviceIterations=3, accumulation=2)
        made.Training.setAutomaticLossScaling(True)
        optimizer = adam(model)
        step = poptorch.trainingModel(model, made, optimizer)
        factors = []
        for _ in range(3):
            step(*half_batch(6))
            factors.append(float(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"]))
        found[engine] = (factors, model.first.weight.detach().float())
        assert runs_natively(step) == (engine == "native")

    assert found["native"][0] == found["reference"][0] == [8.0, 64.0, 512.0]
    torch.testing.assert_close(found["native"][1], found["reference"][1], rtol=0, atol=2e-3)


class Weight(nn.Module):
    """A weight that loses lr at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4000).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((self.weight * x).float(), "sum")


def trained_at_random(seed: int) -> torch.Tensor:
    model = Weight()
    made = options(deviceIterations=4).randomSeed(seed)
    made.Precision.enableStochasticRounding(True)
    step = poptorch.trainingModel(model, made, poptorch.optim.SGD(model.parameters(), lr=1e-4))
    for _ in range(5):
        step(torch.ones(16000).half())
    assert {facts["lowering"] for facts in step.nativeDecisions()} == {"kernels"}
    return model.weight.detach().float()


def test_updates_are_rounded_at_random_and_right_on_average() -> None:
    weights = trained_at_random(1)

    assert float(weights.mean()) == pytest.approx(1 - 20 * 1e-4, abs=1e-4)
    # Of 20 independent roundings, weights end in several places, not all in the same two.
    assert len(weights.unique()) > 5
    assert torch.equal(weights, trained_at_random(1))
    assert not torch.equal(weights, trained_at_random(2))


@pytest.mark.slow
def test_half_activations_with_float_weights_train_as_on_the_reference_engine() -> None:
    model = seeded(Net)
    other = copy.deepcopy(model)
    ours = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    theirs = poptorch.trainingModel(
        other, options("reference"), torch.optim.SGD(other.parameters(), lr=0.1)
    )

    for _ in range(3):
        (out, _), (expected, _) = ours(*half_batch(1)), theirs(*half_batch(1))

    assert out.dtype is expected.dtype is torch.float16
    assert runs_natively(ours)
    torch.testing.assert_close(out, expected, rtol=0, atol=4e-3)
    torch.testing.assert_close(model.first.weight, other.first.weight, rtol=0, atol=1e-3)


def test_anchors_and_float_checks_run_on_the_reference_engine_with_one_message(caplog) -> None:
    checked = options(outputMode=(OutputMode.All,))
    checked.Precision.enableFloatingPointExceptions(True)
    anchored = options()
    anchored.anchorTensor("hidden", "first/MatMul:0")
    for made, why in ((checked, "floating-point exceptions"), (anchored, "anchored tensors")):
        caplog.clear()
        infer = poptorch.inferenceModel(seeded(Net), made)
        for _ in range(3):
            infer(batch()[0])

        messages = [r.getMessage() for r in caplog.records if "reference engine" in r.getMessage()]
        assert len(messages) == 1 and why in messages[0]
        assert not runs_natively(infer)

    assert infer.getAnchoredTensor("hidden").shape == (4, 6)


def test_synthetic_data_is_not_read_by_the_short_way_either() -> None:
    infer = poptorch.inferenceModel(seeded(Net), options(enableSyntheticData=True))

    for _ in range(4):
        out = infer(torch.full((4, 4), float("nan")))

    assert runs_natively(infer)
    assert out.tolist() == [[0.0] * 3] * 4
