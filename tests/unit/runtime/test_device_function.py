"""`IPUContext`: functions on the device, compared with the same function in eager mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from pantile.errors import Error
from poptorch.experimental import IPUContext


@pytest.fixture(autouse=True, params=["0", "1"], ids=["default", "strict"])
def _both_modes(request, monkeypatch):
    monkeypatch.setenv("POPTORCH_STRICT", request.param)


def test_a_function_gives_what_it_gives_in_eager_mode():
    x, y = torch.randn(3, 4), torch.randn(4)

    result = IPUContext(torch.atan2)(x, y)

    torch.testing.assert_close(result, torch.atan2(x, y))


def test_nested_tensors_are_inputs_and_other_arguments_are_constants():
    def mixed(pair, *, scale, rows=None):
        return {"sum": scale * (pair[0] + pair[1]), "rows": rows}

    context = IPUContext(mixed)
    x, y = torch.randn(5), torch.randn(5)

    for scale in (2.0, 3.0, 2.0):
        result = context([x, y], scale=scale)
        torch.testing.assert_close(result["sum"], scale * (x + y))
        assert result["rows"] is None


def test_a_call_like_an_earlier_one_is_not_traced_again():
    traced = []

    def count(x, factor):
        traced.append(factor)
        return factor * x

    context = IPUContext(count)
    for factor in (2, 2, 3, 2):
        context(torch.ones(3), factor)

    assert sorted(set(traced)) == [2, 3]
    assert traced.index(3) == len(traced) - 1


def test_an_integer_and_a_float_that_are_equal_are_two_programs():
    context = IPUContext(torch.mul)
    x = torch.arange(3)

    assert context(x, 2).dtype is (x * 2).dtype
    torch.testing.assert_close(context(x, 2.0), x * 2.0)


def test_an_empty_tensor_can_be_an_argument():
    assert IPUContext(torch.add)(torch.empty(0, 2), 1).shape == (0, 2)


def test_what_a_function_writes_stays_on_the_device():
    x = torch.zeros(4)

    def write(t):
        t += 1
        return t

    assert IPUContext(write)(x).tolist() == [1.0] * 4
    assert x.tolist() == [0.0] * 4


def test_a_function_may_differentiate_and_the_leaf_gets_its_gradient():
    x = nn.Parameter(torch.randn(3))
    eager = copy.deepcopy(x)

    def square(t):
        (t * t).sum().backward()
        return t.grad

    result = IPUContext(square)(x)

    torch.testing.assert_close(result, square(eager))
    torch.testing.assert_close(x.grad, eager.grad)


def test_gradients_of_a_models_weights_can_be_returned():
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    x, y = torch.randn(4, 3), torch.randn(4, 2)

    def backward(module, data, target):
        loss = F.mse_loss(module(data), target)
        loss.backward()
        return loss, module.weight.grad, module.bias.grad

    results = IPUContext(backward, model=model)(model, x, y)

    for result, expected in zip(results, backward(twin, x, y), strict=True):
        torch.testing.assert_close(result, expected)


def test_a_write_of_the_wrong_type_is_refused_in_eagers_words():
    with pytest.raises(RuntimeError) as eager:
        torch.acos_(torch.tensor([1, 0]))

    with pytest.raises(RuntimeError) as caught:
        IPUContext(torch.acos_)(torch.tensor([1, 0]))

    assert str(eager.value) in str(caught.value)


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(Error, match="cannot be called"):
        IPUContext(3)


def test_the_compilers_of_poptorch_are_accepted():
    assert poptorch.hasMlirSupportOnPlatform()
    for compiler in poptorch.Compiler:
        assert IPUContext(torch.neg, compiler=compiler)(torch.ones(1)).item() == -1
