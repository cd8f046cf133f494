"""What comes back: structure, ownership, and what cannot be done with it."""

from __future__ import annotations

import copy
import io
import itertools
from collections import OrderedDict, namedtuple

import pytest
import torch
from tests.unit.runtime.toy_models import Pass, Regression, data, options, sgd, strict
from torch import nn

import poptorch

Pair = namedtuple("Pair", "left right")


def run(function, *args, **kwargs):
    return poptorch.inferenceModel(Pass(function), options())(*args, **kwargs)


def test_the_structure_of_forward_comes_back():
    x = torch.randn(2, 3)

    out = run(lambda x: {"a": [x + 1, (x * 2, None)], "b": Pair(x - 1, "text"), "c": 7}, x)

    assert torch.equal(out["a"][0], x + 1)
    assert torch.equal(out["a"][1][0], x * 2)
    assert out["a"][1][1] is None
    assert isinstance(out["b"], Pair)
    assert torch.equal(out["b"].left, x - 1)
    assert out["b"].right == "text"
    assert out["c"] == 7


class Named(OrderedDict):
    """Results under names, of a class of the user's own."""

    def sizes(self):
        return [value.numel() for value in self.values()]


def test_a_dict_of_the_users_own_class_comes_back_filled():
    model = poptorch.inferenceModel(
        Pass(lambda x: Named(sum=x + 1, first=x, text="same")), options()
    )

    for _ in range(2):
        x = torch.randn(2, 3)
        out = model(x)

        assert type(out) is Named
        assert list(out) == ["sum", "first", "text"]
        assert torch.equal(out["sum"], x + 1)
        assert torch.equal(out["first"], x)
        assert out["text"] == "same"


def test_an_argument_can_be_a_dict_of_the_users_own_class():
    model = poptorch.inferenceModel(Pass(lambda d: (d["a"] - d["b"], sum(d.sizes()))), strict())
    a, b = torch.randn(3), torch.randn(3)

    assert torch.equal(model(Named(a=a, b=b))[0], a - b)
    assert torch.equal(model(Named(a=b, b=a))[0], b - a)
    assert model(Named(a=a, b=b))[1] == 6


def test_nothing_returned_is_none():
    assert run(lambda x: None, torch.ones(2)) is None


def test_returned_tensors_share_memory_with_nothing():
    class Aliases(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("buffer", torch.ones(4))
            self.table = torch.ones(4)

        def forward(self, x):
            y = x * 2
            return x, x[1:], self.weight, self.buffer, self.table, y, y, y.view(2, 2), self.table

    model, x = Aliases(), torch.ones(4)

    outputs = poptorch.inferenceModel(model, options())(x)

    mine = [model.weight, model.buffer, model.table, x, *outputs]
    for a, b in itertools.combinations(mine, 2):
        assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def test_a_returned_tensor_is_not_changed_by_later_steps():
    model = Regression()
    step = poptorch.trainingModel(Returned(model), options(), sgd(model))
    x, target = data(4)

    weight, _ = step(x, target)
    before = weight.clone()
    step(x, target)

    assert torch.equal(weight, before)


class Returned(nn.Module):
    """Returns its weight beside its loss."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, target):
        return self.inner.fc.weight, self.inner(x, target)[1]


def test_an_input_returned_unchanged_has_the_value_of_this_run():
    model = poptorch.inferenceModel(Pass(lambda x: x), options())
    model(torch.zeros(2))

    assert torch.equal(model(torch.ones(2)), torch.ones(2))


def test_constants_of_the_host_are_returned_as_they_are():
    table = torch.arange(3.0)
    model = poptorch.inferenceModel(Pass(lambda x: (table, x)), options(deviceIterations=2))

    out, _ = model(torch.ones(4))

    assert torch.equal(out, table)
    assert out.data_ptr() != table.data_ptr()


@pytest.mark.filterwarnings("error")
def test_strict_mode_warns_of_a_host_tensor_among_the_outputs():
    table = torch.arange(3.0)
    model = poptorch.inferenceModel(Pass(lambda x: (table, x)), strict())

    with pytest.warns(UserWarning, match="expected to be on the IPU"):
        model(torch.ones(4))


@pytest.mark.parametrize("training", [True, False])
def test_backward_on_an_output_is_an_error(training):
    model = Regression()
    x, target = data(4)
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel

    _, loss = wrap(model, options())(x, target)

    with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called explicitly"):
        loss.backward()


def test_outputs_can_be_copied_and_saved():
    _, loss = poptorch.inferenceModel(Regression(), options())(*data(4))

    file = io.BytesIO()
    torch.save({"loss": loss}, file)
    file.seek(0)

    assert torch.equal(torch.load(file)["loss"], loss)
    assert torch.equal(copy.deepcopy(loss), loss)
    assert not loss.requires_grad


@pytest.mark.parametrize(
    ("given", "default", "narrow"),
    [
        (torch.int64, torch.int64, torch.int32),
        (torch.float64, torch.float64, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float16, torch.float16),
        (torch.int16, torch.int16, torch.int16),
        (torch.uint8, torch.uint8, torch.uint8),
        (torch.bool, torch.bool, torch.bool),
    ],
)
def test_wide_types_are_kept_by_default_and_narrowed_in_strict_mode(given, default, narrow):
    x = torch.ones(4, dtype=given)

    assert poptorch.inferenceModel(Pass(lambda x: x), options())(x).dtype is default
    assert poptorch.inferenceModel(Pass(lambda x: x), strict())(x).dtype is narrow
