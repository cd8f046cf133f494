"""Arguments: how they are bound, and what in-place changes do to the caller's tensors."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.unit.runtime.toy_models import Pass, options, strict
from torch import nn

import poptorch
from poptorch import CommGroupType


def run(function, *args, opts=None, **kwargs):
    return poptorch.inferenceModel(Pass(function), opts or options())(*args, **kwargs)


@pytest.mark.parametrize("opts", [options, strict])
def test_an_in_place_change_reaches_the_callers_tensor(opts):
    x = torch.zeros(4)
    model = poptorch.inferenceModel(Pass(add_one), opts())

    for expected in (1.0, 2.0):
        assert model(x) is None
        assert torch.equal(x, torch.full((4,), expected))


def add_one(x):
    x += 1


def test_an_in_place_change_of_list_and_dict_elements_reaches_the_caller():
    def forward(items, named):
        items[1] += 1
        named["a"].mul_(3)
        return items[0] + named["a"]

    a, b, c = torch.ones(2), torch.ones(2), torch.ones(2)

    out = run(forward, [a, b], {"a": c})

    assert torch.equal(a, torch.ones(2))
    assert torch.equal(b, torch.full((2,), 2.0))
    assert torch.equal(c, torch.full((2,), 3.0))
    assert torch.equal(out, torch.full((2,), 4.0))


def test_an_in_place_change_reaches_a_tensor_that_is_not_contiguous():
    whole = torch.zeros(3, 4)

    run(add_one, whole.t())
    run(add_one, whole[:, ::2])

    assert torch.equal(whole, torch.tensor([2.0, 1.0, 2.0, 1.0]).expand(3, 4))


def test_an_in_place_change_reaches_a_tensor_that_strict_mode_narrows():
    x = torch.zeros(4, dtype=torch.float64)

    run(add_one, x, opts=strict())

    assert torch.equal(x, torch.ones(4, dtype=torch.float64))


def test_each_micro_batch_changes_its_own_rows():
    x = torch.zeros(6, 1)
    rows = torch.arange(6.0).reshape(6, 1)

    run(lambda x, y: x.add_(y), x, rows, opts=options(deviceIterations=3))

    assert torch.equal(x, rows)


def test_replicas_of_a_group_do_not_see_each_others_changes():
    opts = options(replicationFactor=2).inputReplicaGrouping(2, CommGroupType.Consecutive)
    x = torch.zeros(2)

    out = run(lambda x: x.add_(1), x, opts=opts)

    assert torch.equal(out, torch.ones(4))
    assert torch.equal(x, torch.ones(2))


def test_a_tensor_passed_twice_is_one_tensor_as_in_eager_mode():
    def forward(a, b):
        a += 1
        return a + b

    x = torch.ones(2)

    assert torch.equal(run(forward, x, x), torch.full((2,), 4.0))
    assert torch.equal(x, torch.full((2,), 2.0))
    assert torch.equal(run(forward, torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))


def test_one_model_takes_the_same_tensor_twice_and_two_tensors():
    model = poptorch.inferenceModel(Pass(lambda a, b: a * 10 + b), options())
    x, y = torch.ones(2), torch.full((2,), 2.0)

    assert torch.equal(model(x, x), torch.full((2,), 11.0))
    assert torch.equal(model(x, y), torch.full((2,), 12.0))
    assert torch.equal(model(y, x), torch.full((2,), 21.0))


class Signature(nn.Module):
    def forward(self, a, b=None, *rest, scale=2, **named):
        total = a if b is None else a - b
        for i, item in enumerate(rest):
            total = total + item * (i + 1)
        for name in sorted(named):
            total = total + named[name] * len(name)
        return total * scale


@pytest.mark.parametrize("opts", [options, strict])
@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (1, {}),
        (2, {}),
        (4, {}),
        (1, {"b": 1}),
        (0, {"a": 1, "b": 1}),
        (0, {"b": 1, "a": 1}),
        (2, {"zz": 1, "y": 1}),
        (3, {"zz": 1, "scale": 3}),
    ],
)
def test_every_kind_of_call_means_what_it_means_in_eager_mode(opts, calls, args, kwargs):
    model = poptorch.inferenceModel(Signature(), opts())

    for _ in range(calls + 1):
        given = [torch.randn(3) for _ in range(args)]
        named = {k: 3 if k == "scale" else torch.randn(3) for k in kwargs}
        assert torch.equal(model(*given, **named), Signature()(*given, **named))


def test_a_tensor_as_default_argument_is_fed_each_time():
    table = torch.arange(3.0)

    class Default(nn.Module):
        def forward(self, x, t=table):
            return x + t

    model = poptorch.inferenceModel(Default(), options())

    assert torch.equal(model(torch.ones(3)), torch.ones(3) + table)
    assert torch.equal(model(torch.zeros(3)), table)
    assert torch.equal(model(t=torch.ones(3), x=torch.zeros(3)), torch.ones(3))


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "text"),
    [
        ((), {}, poptorch.Error, "Mandatory parameter a missing"),
        ((1, 2, 3), {}, AssertionError, "too many"),
        ((1, 2), {"c": 3}, AssertionError, "'c'"),
        ((1,), {"a": 3}, AssertionError, "'a'"),
    ],
)
def test_a_call_forward_cannot_take_is_refused(args, kwargs, kind, text):
    class Two(nn.Module):
        def forward(self, a, b=None):
            return a

    call = [torch.ones(1)] * len(args), {name: torch.ones(1) for name in kwargs}

    with pytest.raises(kind, match=text) as error:
        poptorch.inferenceModel(Two(), options())(*call[0], **call[1])

    assert isinstance(error.value, poptorch.Error)
    assert error.value.fix


def test_an_input_that_requires_grad_is_detached_with_one_warning(caplog):
    model = poptorch.inferenceModel(Pass(lambda x: x * 2), options())
    x = torch.ones(2, requires_grad=True)

    with caplog.at_level(logging.WARNING):
        outputs = [model(x), model(x)]

    assert not any(out.requires_grad for out in outputs)
    assert caplog.text.count("has requires_grad=True set") == 1


def test_strict_mode_says_once_that_dicts_have_partial_support(caplog):
    model = poptorch.inferenceModel(Pass(lambda d: d["a"] * 2), strict())

    with caplog.at_level(logging.WARNING):
        model({"a": torch.ones(2)})
        model({"a": torch.ones(2)})

    assert caplog.text.count("only partial support") == 1


def test_strict_mode_refuses_zero_sized_tensors_and_the_default_takes_them():
    def forward(x):
        return torch.cat([x, x[:, :0]], dim=1)

    assert run(forward, torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported.*\[2, 0\]"):
        run(forward, torch.ones(2, 3), opts=strict())


def test_strict_mode_takes_what_an_lstm_keeps_for_its_gradient():
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4)
    model = Pass(lambda x: poptorch.identity_loss(lstm(x)[0].square(), "sum"))
    model.lstm = lstm
    x = torch.randn(5, 2, 3)
    expected = lstm(x)[0].square().sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = poptorch.trainingModel(model, strict(), optimizer)(x)

    torch.testing.assert_close(loss, expected)
