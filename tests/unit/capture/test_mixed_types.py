"""Weights of another type than the activations: the result has the activation's type (spec 2.6)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Pass, options
from torch import nn

import poptorch

LAYERS = {
    "linear": (lambda: nn.Linear(4, 4), (3, 4)),
    "conv": (lambda: nn.Conv2d(4, 4, 3), (2, 4, 5, 5)),
    "transposed conv": (lambda: nn.ConvTranspose1d(4, 4, 3), (2, 4, 5)),
    "prelu": (nn.PReLU, (3, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(4), (3, 4, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 3)),
    "instance norm": (lambda: nn.InstanceNorm1d(4, affine=True), (3, 4, 3)),
}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-3}


class Trained(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)
        return out, poptorch.identity_loss(out.float() ** 2, "mean")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("activations", "weights"),
    [
        (torch.float16, torch.float32),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_the_result_has_the_type_of_the_activation_and_eager_values(name, activations, weights):
    make, shape = LAYERS[name]
    layer = make().to(weights)
    eager = copy.deepcopy(layer).float()
    x = torch.randn(shape).to(activations)
    step = poptorch.trainingModel(
        Trained(layer), options(), poptorch.optim.SGD(layer.parameters(), lr=0.1)
    )
    expected = eager(x.float())
    (expected**2).mean().backward()
    updated = [p.detach() - 0.1 * p.grad for p in eager.parameters()]

    out, _ = step(x)

    assert out.dtype is activations
    torch.testing.assert_close(
        out.float(), expected.detach(), rtol=0, atol=3 * TOLERANCE[activations]
    )
    for ours, by_hand in zip(layer.parameters(), updated, strict=True):
        assert ours.dtype is weights
        torch.testing.assert_close(
            ours.detach().float(), by_hand, rtol=0, atol=3 * TOLERANCE[activations]
        )


def test_half_weights_with_float_statistics_normalise_and_count_in_float():
    norm = nn.BatchNorm1d(4).half()
    norm.running_mean, norm.running_var = norm.running_mean.float(), norm.running_var.float()
    eager, x = nn.BatchNorm1d(4), torch.randn(8, 4, 3).half()
    step = poptorch.trainingModel(Trained(norm), options(), torch.optim.SGD(norm.parameters(), 0.1))

    out, _ = step(x)

    expected = eager(x.float())
    assert out.dtype is torch.float16 and norm.running_mean.dtype is torch.float32
    torch.testing.assert_close(out.float(), expected.detach(), rtol=0, atol=4e-3)
    torch.testing.assert_close(norm.running_mean, eager.running_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(norm.running_var, eager.running_var, rtol=0, atol=1e-6)


def test_half_statistics_are_updated_where_the_data_is_float():
    norm, eager, x = nn.BatchNorm1d(4).half(), nn.BatchNorm1d(4), torch.randn(8, 4)
    step = poptorch.trainingModel(Trained(norm), options(), torch.optim.SGD(norm.parameters(), 0.1))

    step(x)
    eager(x)

    assert norm.running_mean.dtype is torch.float16
    torch.testing.assert_close(norm.running_mean.float(), eager.running_mean, rtol=0, atol=1e-3)


def test_elementwise_operands_are_promoted_as_in_pytorch():
    infer = poptorch.inferenceModel(Pass(lambda a, b: a + b), options())

    assert infer(torch.ones(2).half(), torch.ones(2)).dtype is torch.float32


def test_equal_types_keep_the_bits_of_eager():
    layer, x = nn.Linear(4, 4).half(), torch.randn(3, 4).half()

    out = poptorch.inferenceModel(layer, options())(x)

    assert torch.equal(out, layer(x))


def test_autocast_in_forward_and_round_the_call_gives_eager_bits():
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)

    def inside(value):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(value, layer.weight, layer.bias)

    model = Pass(inside)
    model.layer = layer
    out = poptorch.inferenceModel(model, options())(x)
    infer = poptorch.inferenceModel(layer, options())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around, expected = infer(x), layer(x)

    assert out.dtype is around.dtype is torch.bfloat16
    assert torch.equal(out, expected) and torch.equal(around, expected)
    assert infer(x).dtype is torch.float32
