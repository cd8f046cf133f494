"""What the user of an instrumented module sees."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from tests.unit.runtime.device_owner import DeviceOwner, Net
from torch import nn

from pantile.runtime.instrument import owner_of

TOUCHES = {
    "a direct parameter": lambda m: m.scale,
    "a child's parameter": lambda m: m.fc.weight,
    "a direct buffer": lambda m: m.offset,
    "a child's buffer": lambda m: m.norm.running_mean,
    "getattr": lambda m: getattr(m.fc, "bias"),  # noqa: B009
    "get_parameter": lambda m: m.get_parameter("fc.weight"),
    "parameters()": lambda m: next(iter(m.parameters())),
    "named_parameters()": lambda m: dict(m.named_parameters()),
    "a child's parameters()": lambda m: list(m.fc.parameters()),
    "buffers()": lambda m: list(m.buffers()),
    "named_buffers()": lambda m: dict(m.named_buffers()),
    "_parameters": lambda m: m._parameters,
    "_buffers": lambda m: m._buffers,
    "state_dict()": lambda m: m.state_dict(),
    "a child's state_dict()": lambda m: m.fc.state_dict(),
    "a call": lambda m: m(torch.ones(2, 3)),
    "a child's call": lambda m: m.fc(torch.ones(2, 3)),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "torch.save": lambda m: torch.save(m, io.BytesIO()),
    "load_state_dict": lambda m: m.load_state_dict({}, strict=False),
    "zero_grad": lambda m: m.zero_grad(),
    "to": lambda m: m.to(torch.float64),
    "setting a parameter": lambda m: setattr(m.fc, "weight", nn.Parameter(torch.ones(3, 3))),
}

NO_TOUCHES = {
    "a plain attribute": lambda m: m.note,
    "setting a plain attribute": lambda m: setattr(m, "note", "new"),
    "a child": lambda m: m.fc,
    "a child's plain attribute": lambda m: m.fc.in_features,
    "children": lambda m: list(m.children()),
    "named_modules": lambda m: dict(m.named_modules()),
    "eval": lambda m: m.eval(),
    "training": lambda m: m.training,
    "isinstance": lambda m: isinstance(m, Net),
    "a missing attribute": lambda m: hasattr(m, "nothing"),
    "forward as a method": lambda m: m.forward,
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_the_first_touch_after_training_pulls_once_and_later_ones_do_not(touch: Any):
    model = Net()
    owner = DeviceOwner(model)
    touch(copy.deepcopy(model))
    assert owner.pulls == 0
    owner.train(2.0)

    touch(model)
    first = owner.pulls
    touch(model)

    assert first == 1
    assert owner.pulls == 1


@pytest.mark.parametrize("touch", NO_TOUCHES.values(), ids=NO_TOUCHES)
def test_what_holds_no_weight_does_not_pull(touch: Any):
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    touch(model)

    assert owner.pulls == 0


def test_every_round_of_training_is_pulled_once():
    model = Net()
    owner = DeviceOwner(model)

    for round_ in range(1, 4):
        owner.train(float(round_))
        owner.train(float(round_) + 0.5)
        assert model.scale.tolist() == [round_ + 0.5] * 3
        assert owner.pulls == round_


def test_the_class_looks_like_the_original():
    model = Net()
    owner = DeviceOwner(model)

    kind = type(model)

    assert kind is not Net
    assert (kind.__name__, kind.__qualname__) == (Net.__name__, Net.__qualname__)
    assert (kind.__module__, kind.__doc__) == (Net.__module__, Net.__doc__)
    assert kind.__bases__ == (Net,)
    assert isinstance(model, Net)
    assert model.__class__ is Net
    assert type(model.fc).__bases__ == (nn.Linear,)
    assert repr(model) == repr(Net())
    assert owner.pulls == 0


def test_the_host_model_computes_with_the_pulled_weights():
    torch.manual_seed(0)
    model, eager = Net().eval(), Net().eval()
    owner = DeviceOwner(model)
    owner.train(0.5)
    with torch.no_grad():
        for tensor in (*eager.parameters(), *eager.buffers()):
            tensor.fill_(0.5)
    x = torch.randn(4, 3)

    out = model(x)

    assert torch.equal(out, eager(x))
    assert type(out) is torch.Tensor
    assert owner.pulls == 1


def test_the_host_model_can_be_trained_on_the_host():
    torch.manual_seed(0)
    model = Net()
    eager = copy.deepcopy(model)
    owner = DeviceOwner(model)
    x = torch.randn(4, 3)

    for net in (model, eager):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()

    for name, tensor in eager.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert owner.pulls == 0


def test_edits_in_place_stay():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    nn.init.ones_(model.fc.weight)
    model.scale.data = torch.full((3,), 7.0)
    with torch.no_grad():
        model.fc.bias.add_(1)
    model.offset[0] = 9.0

    assert model.fc.weight.tolist() == [[1.0] * 3] * 3
    assert model.scale.tolist() == [7.0] * 3
    assert model.fc.bias.tolist() == [3.0] * 3
    assert model.offset.tolist() == [9.0, 2.0, 2.0]
    assert owner.pulls == 1


def test_the_state_dict_is_plain_and_shares_storage():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    state = model.state_dict()

    assert list(state) == list(Net().state_dict())
    assert state._metadata == Net().state_dict()._metadata
    assert {type(value) for value in state.values()} == {torch.Tensor}
    assert state["fc.weight"].data_ptr() == model.fc.weight.data_ptr()
    assert owner.pulls == 1


def test_the_state_dict_with_variables_holds_plain_parameters_with_their_gradients():
    model = Net()
    owner = DeviceOwner(model)
    model(torch.ones(2, 3)).sum().backward()

    state = model.state_dict(keep_vars=True)

    assert type(state["fc.weight"]) is nn.Parameter
    assert type(state["offset"]) is torch.Tensor
    assert torch.equal(state["fc.weight"].grad, model.fc.weight.grad)
    assert owner.pulls == 0


def test_a_state_dict_loads_into_the_host_model():
    model, other = Net(), Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    result = model.load_state_dict(other.state_dict())

    assert not result.missing_keys
    assert torch.equal(model.fc.weight, other.fc.weight)
    assert owner.pulls == 1


COPIES = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "pickle protocol 4": lambda m: pickle.loads(pickle.dumps(m, protocol=4)),
    "the oldest pickle": lambda m: pickle.loads(pickle.dumps(m, protocol=0)),
    "torch.save": lambda m: _saved(m),
}


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_plain_class_and_the_trained_values(duplicate: Any):
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    copied = duplicate(model)

    assert type(copied) is Net
    assert owner_of(copied) is None
    assert copied.fc.weight.tolist() == [[2.0] * 3] * 3
    assert owner_of(model) is owner
    assert owner.pulls == 1


@pytest.mark.parametrize("name", sorted(set(COPIES) - {"copy.copy"}))
def test_a_deep_copy_is_plain_all_the_way_down_and_independent(name: str):
    model = Net()
    owner = DeviceOwner(model)

    copied = COPIES[name](model)
    owner.train(2.0)

    assert type(copied.fc) is nn.Linear
    assert {type(p) for p in copied.parameters()} == {nn.Parameter}
    assert {type(b) for b in copied.buffers()} == {torch.Tensor}
    assert copied.fc.weight.tolist() != [[2.0] * 3] * 3
    assert owner.pulls == 0


def test_a_shallow_copy_shares_the_instrumented_parts():
    model = Net()
    owner = DeviceOwner(model)
    shallow = copy.copy(model)

    owner.train(2.0)

    assert shallow.scale is vars(model)["_parameters"]["scale"]
    assert shallow.scale.sum().item() == 6.0
    assert owner.pulls == 1


def test_a_plain_model_around_an_instrumented_part_copies_to_plain():
    part = nn.Linear(2, 2)
    owner = DeviceOwner(part)
    owner.train(2.0)

    copied = copy.deepcopy(nn.Sequential(part))

    assert type(copied[0]) is nn.Linear
    assert copied[0].weight.sum().item() == 8.0
