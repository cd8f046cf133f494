"""Modules of unusual make: recurrent, parametrized, lazy, scripted, self-reducing …"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tests.unit.runtime.device_owner import DeviceOwner, Net
from torch import nn
from torch.nn.utils import parametrize

from pantile.runtime.instrument import instrument, owner_of, release


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_work(kind: type[nn.RNNBase]):
    torch.manual_seed(0)
    model = kind(3, 4, num_layers=2)
    eager = copy.deepcopy(model)
    owner = DeviceOwner(model)
    owner.train(0.25)
    with torch.no_grad():
        for p in eager.parameters():
            p.fill_(0.25)
    x = torch.randn(5, 2, 3)

    assert torch.equal(model(x)[0], eager(x)[0])
    assert torch.equal(copy.deepcopy(model)(x)[0], eager(x)[0])
    assert torch.equal(pickle.loads(pickle.dumps(model))(x)[0], eager(x)[0])
    model.weight_hh_l0 = nn.Parameter(torch.zeros_like(eager.weight_hh_l0))
    eager.weight_hh_l0 = nn.Parameter(torch.zeros_like(eager.weight_hh_l0))
    assert torch.equal(model(x)[0], eager(x)[0])
    assert owner.pulls == 1


def test_attention_works_in_training_and_evaluation():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    eager = copy.deepcopy(model)
    owner = DeviceOwner(model)
    x = torch.randn(2, 5, 8)

    assert torch.equal(model(x), eager(x))
    torch.testing.assert_close(model.eval()(x), eager.eval()(x))
    assert owner.pulls == 0


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_a_module_that_was_parametrized_before_wrapping_works():
    model = nn.Sequential(nn.Linear(2, 2))
    parametrize.register_parametrization(model[0], "weight", Doubled())
    original = type(model[0])
    owner = DeviceOwner(model)
    owner.train(3.0)

    assert model[0].weight.tolist() == [[6.0] * 2] * 2
    assert owner.pulls == 1
    copied = copy.deepcopy(model)
    assert type(copied[0]) is original
    assert copied[0].weight.tolist() == [[6.0] * 2] * 2
    release(model)
    assert type(model[0]) is original


def test_a_module_that_is_parametrized_after_wrapping_stays_instrumented():
    model = nn.Sequential(nn.Linear(2, 2))
    owner = DeviceOwner(model)

    parametrize.register_parametrization(model[0], "weight", Doubled())

    assert parametrize.is_parametrized(model[0])
    assert owner_of(model[0]) is owner
    assert type(model[0]).__bases__ == (model[0].__class__,)
    release(model)
    assert type(model[0]).__name__ == "ParametrizedLinear"
    parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is nn.Linear


class Wrapping(nn.Module):
    """Forwards unknown attributes to its inner module and keeps a journal of what is set."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.setdefault("journal", []).append(name)
        super().__setattr__(name, value)


def test_custom_getattr_and_setattr_keep_working():
    model = Wrapping()
    owner = DeviceOwner(model)
    owner.train(2.0)

    model.mode = "x"
    assert model.in_features == 2
    assert owner.pulls == 0
    assert model.weight.sum().item() == 8.0
    assert owner.pulls == 1
    assert model.journal[-2:] == ["inner", "mode"]
    assert type(copy.deepcopy(model)) is Wrapping


class Registered(nn.Module):
    """A class whose subclasses must register with a keyword."""

    known: list[type] = []  # noqa: RUF012

    def __init_subclass__(cls, *, key: str) -> None:
        Registered.known.append(cls)


class Entry(Registered, key="entry"):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry)

    def __hash__(self) -> int:
        return 1


def test_a_class_that_registers_subclasses_and_compares_by_value_works():
    model = Entry()

    owner = DeviceOwner(model)
    owner.train(1.0)

    assert Registered.known == [Entry]
    assert model.fc.bias.sum().item() == 2.0
    assert type(pickle.loads(pickle.dumps(model))) is Entry


class Reduced(nn.Module):
    """Pickles itself by its class and size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.fc = nn.Linear(size, size)

    def __reduce__(self) -> Any:
        return (type(self), (self.size,), self.__dict__)


def test_a_class_that_reduces_itself_pickles_to_the_plain_class():
    model = Reduced(2)
    owner = DeviceOwner(model)
    owner.train(3.0)

    copied = pickle.loads(pickle.dumps(model))

    assert type(copied) is Reduced
    assert copied.fc.bias.tolist() == [3.0, 3.0]
    assert owner.pulls == 1


class Cloning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def fresh(self) -> nn.Module:
        return type(self)()


def test_a_fresh_instance_of_the_instrumented_class_behaves_plainly():
    model = Cloning()
    owner = DeviceOwner(model)
    owner.train(3.0)

    fresh = model.fresh()

    assert fresh.fc.weight.shape == (2, 2)
    assert len(fresh.state_dict()) == 2
    assert type(pickle.loads(pickle.dumps(fresh))) is Cloning
    assert owner_of(fresh) is None
    assert owner.pulls == 0


def test_a_graph_module_copies_to_a_graph_module():
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    owner = DeviceOwner(model)
    owner.train(1.0)
    x = torch.ones(1, 2)

    copied = copy.deepcopy(model)

    assert model(x).tolist() == [[3.0, 3.0]]
    assert copied(x).tolist() == [[3.0, 3.0]]
    assert isinstance(copied, torch.fx.GraphModule)
    assert owner.pulls == 1


def test_parameter_containers_pull():
    model = nn.Module()
    model.items = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(2)])
    model.named = nn.ParameterDict({"a": nn.Parameter(torch.zeros(1))})
    owner = DeviceOwner(model)

    owner.train(1.0)
    assert [p.item() for p in model.items] == [1.0, 1.0]
    owner.train(2.0)
    assert model.named["a"].item() == 2.0
    assert owner.pulls == 2


def test_a_lazy_module_becomes_real_while_instrumented():
    model = nn.Sequential(nn.LazyLinear(2))
    owner = DeviceOwner(Net())
    instrument(model, owner)

    out = model(torch.ones(3, 4))

    assert out.shape == (3, 2)
    assert isinstance(model[0], nn.Linear)
    release(model)
    assert type(model[0]) is nn.Linear
    assert type(model[0].weight) is nn.Parameter


def test_functional_call_replaces_the_parameters():
    model = nn.Linear(2, 1, bias=False)
    owner = DeviceOwner(model)

    out = torch.func.functional_call(model, {"weight": torch.ones(1, 2)}, torch.ones(1, 2))

    assert out.tolist() == [[2.0]]
    assert owner.pulls == 0


def test_a_scripted_part_works():
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 1)), nn.Linear(1, 1))
    owner = DeviceOwner(model)
    owner.train(1.0)

    assert model(torch.ones(1, 2)).tolist() == [[4.0]]
    assert owner.pulls == 1
    release(model)
    assert model(torch.ones(1, 2)).tolist() == [[4.0]]
