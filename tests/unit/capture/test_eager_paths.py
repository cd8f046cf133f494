"""Where torch would record another formula than eager's: what runs, is checked, is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch


class Calls(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def test_a_negative_variance_is_noticed_at_run_time():
    model = poptorch.inferenceModel(Calls(F.gaussian_nll_loss))
    x, y, var = torch.randn(3, 4, 2).unbind(0)
    model(x, y, var.abs())

    with pytest.raises(poptorch.Error, match="var has negative"):
        model(x, y, -var.abs())


def test_least_squares_without_full_rank_has_no_residuals():
    model = poptorch.inferenceModel(Calls(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd")[1]))
    a, b = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(model(a, b), torch.linalg.lstsq(a, b, driver="gelsd")[1])

    with pytest.raises(poptorch.Error, match="full rank"):
        model(torch.ones(5, 3), b)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_has_the_gradient_that_eager_has_for_its_zeros(zeros):
    module = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        module.weight[0, :zeros] = 0
    twin = nn.Linear(6, 1, bias=False)
    twin.load_state_dict(module.state_dict())

    def product(linear):
        return linear.weight.prod() * 3

    step = poptorch.trainingModel(_Loss(module, product), optimizer=_sgd(module))
    step(torch.zeros(1))
    optimizer = _sgd(twin)
    product(twin).backward()
    optimizer.step()

    assert torch.equal(module.weight, twin.weight)


class _Loss(nn.Module):
    def __init__(self, inner, function):
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, x):
        return poptorch.identity_loss(self.function(self.inner), reduction="none")


def _sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.5)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x, mask=None, padding=None):
        return self.encoder(x, mask=mask, src_key_padding_mask=padding)


def test_an_encoder_takes_the_fast_path_that_eager_takes():
    module = Encoder().eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        wanted = module(x)

    assert torch.equal(poptorch.inferenceModel(module)(x), wanted)


def test_a_mask_that_stops_being_causal_is_an_error():
    module = Encoder().eval()
    x = torch.randn(5, 5, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        wanted = module(x, causal)
    model = poptorch.inferenceModel(module)

    assert torch.equal(model(x, causal), wanted)
    with pytest.raises(poptorch.Error, match="is_causal"):
        model(x, torch.zeros(5, 5))


def test_padding_by_nested_tensors_is_refused_with_the_way_out():
    module = Encoder().eval()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    with pytest.raises(poptorch.Error, match="enable_nested_tensor=False"):
        poptorch.inferenceModel(module)(torch.randn(2, 5, 8), None, padding)
