"""What the user of an instrumented parameter or buffer sees."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.runtime.device_owner import DeviceOwner, Net
from torch import nn

from pantile.runtime.instrument import release

READS = {
    "attribute": lambda w: w.shape,
    "requires_grad": lambda w: w.requires_grad,
    "grad": lambda w: w.grad,
    "data": lambda w: w.data,
    "device": lambda w: w.device,
    "method": lambda w: w.sum(),
    "item of": lambda w: w[0],
    "len": len,
    "iteration": list,
    "operator": lambda w: w + 1,
    "reflected operator": lambda w: 1 - w,
    "comparison": lambda w: w == 2.0,
    "torch function": torch.sum,
    "second argument": lambda w: torch.equal(torch.zeros(3), w),
    "in a list": lambda w: torch.stack([torch.zeros(3), w]),
    "keyword": lambda w: torch.add(input=torch.zeros(3), other=w),
    "functional": lambda w: torch.nn.functional.relu(w),
    "source of copy_": lambda w: torch.zeros(3).copy_(w),
    "foreach": lambda w: torch._foreach_mul([torch.ones(3), w.detach()], 2.0),
    "aten operator": lambda w: torch.ops.aten.mul(w, 2),
    "vmap": lambda w: torch.vmap(lambda x: x * 2)(w),
    "numpy": lambda w: w.detach().numpy(),
    "tolist": lambda w: w.tolist(),
    "dlpack": lambda w: torch.from_dlpack(w.detach()),
    "repr": repr,
    "str": str,
    "format": lambda w: f"{w}",
    "print": lambda w: print(w, file=io.StringIO()),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "torch.save": lambda w: torch.save(w, io.BytesIO()),
    "setting data": lambda w: setattr(w, "data", torch.ones(3)),
    "setting an attribute": lambda w: setattr(w, "note", 1),
    "nn.Parameter": nn.Parameter,
    "detach": lambda w: w.detach(),
}

IDENTITY = {
    "hash": hash,
    "id": id,
    "is": lambda w: w is None,
    "isinstance Tensor": lambda w: isinstance(w, torch.Tensor),
    "isinstance Parameter": lambda w: isinstance(w, nn.Parameter),
    "isinstance Buffer": lambda w: isinstance(w, nn.Buffer),
    "isinstance of another": lambda w: isinstance(w, int),
    "class": lambda w: w.__class__,
    "is_tensor": torch.is_tensor,
}


@pytest.mark.parametrize("name", ["scale", "offset"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_first_read_after_training_pulls_once(read: Any, name: str):
    model = Net()
    owner = DeviceOwner(model)
    tensor = getattr(model, name)
    owner.train(2.0)

    read(tensor)
    first = owner.pulls
    read(tensor)

    assert first == 1
    assert owner.pulls == 1


@pytest.mark.parametrize("name", ["scale", "offset"])
@pytest.mark.parametrize("ask", IDENTITY.values(), ids=IDENTITY)
def test_a_question_of_identity_does_not_pull(ask: Any, name: str):
    model = Net()
    owner = DeviceOwner(model)
    tensor = getattr(model, name)
    owner.train(2.0)

    ask(tensor)

    assert owner.pulls == 0


def test_an_ordinary_tensor_operation_pulls_nothing():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    torch.ones(3).add_(1)

    assert owner.pulls == 0


def test_the_value_read_is_the_trained_one():
    model = Net()
    owner = DeviceOwner(model)
    weight, offset = model.fc.weight, model.offset
    owner.train(2.0)

    assert torch.equal(torch.full((3,), 2.0), offset)
    assert weight.sum().item() == 18.0
    assert np.array_equal(np.asarray(offset), np.full(3, 2.0, np.float32))


def test_the_classes_look_like_the_originals():
    model = Net()
    owner = DeviceOwner(model)
    weight, offset = model.fc.weight, model.offset

    assert type(weight) is not nn.Parameter
    assert type(weight).__name__ == "Parameter"
    assert isinstance(weight, nn.Parameter)
    assert weight.__class__ is nn.Parameter
    assert isinstance(offset, torch.Tensor)
    assert not isinstance(offset, nn.Parameter)
    assert offset.__class__ is torch.Tensor
    assert owner.pulls == 0


def test_results_are_plain_and_operations_in_place_return_the_tensor_itself():
    model = Net()
    owner = DeviceOwner(model)
    weight, offset = model.scale, model.offset

    assert type(weight * 2) is torch.Tensor
    assert type(offset * 2) is torch.Tensor
    assert type(weight.data) is torch.Tensor
    assert type(weight.detach()) is torch.Tensor
    assert type(offset.clone()) is torch.Tensor
    assert offset.add_(1) is offset
    assert weight.requires_grad_(False) is weight
    assert owner.pulls == 0


def test_gradients_reach_the_instrumented_parameter():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    (model.scale * torch.arange(3.0)).sum().backward()

    assert model.scale.grad.tolist() == [0.0, 1.0, 2.0]
    assert type(model.scale.grad) is torch.Tensor
    model.scale.grad = None
    assert model.scale.grad is None


def test_text_is_that_of_the_plain_tensor():
    model = Net()
    owner = DeviceOwner(model)
    counter = model.norm.num_batches_tracked
    owner.train(2.0)

    assert repr(model.scale) == repr(nn.Parameter(torch.full((3,), 2.0)))
    assert str(model.offset) == str(torch.full((3,), 2.0))
    assert f"{counter:03d}" == "002"


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_has_the_plain_class_and_keeps_its_attributes(duplicate: Any):
    model = Net()
    model.offset.note = "kept"
    owner = DeviceOwner(model)
    owner.train(2.0)

    weight, offset = duplicate(model.scale), duplicate(model.offset)

    assert type(weight) is nn.Parameter
    assert type(offset) is torch.Tensor
    assert offset.note == "kept"
    assert torch.equal(weight, torch.full((3,), 2.0))


def test_a_deep_copy_of_a_list_keeps_one_object_one():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    first, second = copy.deepcopy([model.scale, model.scale])

    assert first is second
    assert first.data_ptr() != model.scale.data_ptr()


def test_a_new_parameter_can_be_made_from_an_instrumented_tensor():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    weight = nn.Parameter(model.scale, requires_grad=False)
    offset = nn.Parameter(model.offset)

    assert type(weight) is type(offset) is nn.Parameter
    assert (weight.requires_grad, offset.requires_grad) == (False, True)
    assert weight.data_ptr() == model.scale.data_ptr()
    assert owner.pulls == 1
    owner.train(3.0)
    assert weight.tolist() == [2.0] * 3
    assert owner.pulls == 1


class Tagged(torch.Tensor):
    """A user's tensor class with torch's default handling."""


class Strict(torch.Tensor):
    """A user's tensor class that handles no class but its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if set(types) != {cls}:
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("order", [lambda a, b: a * b, lambda a, b: b * a], ids=["left", "right"])
def test_tensor_classes_of_the_user_mix_with_instrumented_weights(order: Any):
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    tagged = order(torch.ones(3).as_subclass(Tagged), model.scale)
    strict = order(torch.ones(3).as_subclass(Strict), model.offset)

    assert type(tagged) is Tagged
    assert type(strict) is Strict
    assert strict.tolist() == [2.0] * 3
    assert owner.pulls == 1


class Annotated(nn.Parameter):
    """A user's parameter class."""


def test_a_parameter_class_of_the_user_is_restored_and_copied():
    model = nn.Module()
    model.w = Annotated(torch.zeros(2))
    model.w.axis = 1
    owner = DeviceOwner(model)
    owner.train(2.0)

    copied = copy.deepcopy(model.w)

    assert model.w.tolist() == [2.0, 2.0]
    assert type(copied) is Annotated
    release(model)
    assert type(model.w) is Annotated
    assert model.w.axis == 1


def test_a_tensor_taken_out_of_the_model_is_released_with_it():
    model = Net()
    owner = DeviceOwner(model)
    weight = model.scale
    model.scale = nn.Parameter(torch.ones(3))
    assert type(weight) is not nn.Parameter

    release(model)

    assert type(weight) is nn.Parameter
    assert owner.pulls == 0


def test_half_and_double_conversion_of_the_model_keeps_the_tensors_instrumented():
    model = Net()
    owner = DeviceOwner(model)
    weight = model.fc.weight

    model.double()

    assert model.fc.weight is weight
    assert weight.dtype == torch.float64
    owner.train(2.0)
    assert weight.sum().item() == 18.0
    assert owner.pulls == 1
