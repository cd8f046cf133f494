"""A model comes back from its recorded class and its state, without its constructor."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Regression, data, same_state, strict
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import poptorch
from pantile.errors import StoreError
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.file import read_export, write_export
from pantile.runtime.export.paths import Paths


class Tied(nn.Module):
    """Shared parameter, shared child, absent child, buffers of both kinds, plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.again = self.block
        self.absent = None
        self.register_module("nothing", None)
        self.register_parameter("no_parameter", None)
        self.register_buffer("kept", torch.arange(4.0))
        self.register_buffer("dropped", torch.ones(4), persistent=False)
        self.plain = torch.full((4,), 2.0)
        self.activations = [F.relu, functools.partial(F.leaky_relu, negative_slope=0.1)]
        self.sizes = OrderedDict(a=(1, 2), b={3, 4})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.again(self.block(self.embedding(x))) * self.plain + self.kept - self.dropped
        return self.head(self.activations[1](h))


class NeverBuilt(nn.Linear):
    """Its constructor must not run when it is loaded."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        if hasattr(nn.Linear, "loading"):
            raise AssertionError("the constructor ran")


class WithState(nn.Module):
    """Says itself what is kept of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.cache = lambda x: x

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        del state["cache"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.cache = self.fc.weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def there_and_back(model: nn.Module, folder: Path) -> nn.Module:
    writer = Writer()
    parts = {"model": writer.value(model, "model")}
    writer.check()
    write_export(folder / "file", {}, writer, parts, [])
    (back,) = read_export(folder / "file").restore("model", paths=Paths(), whole_model=True)
    return back


def test_model_computes_the_same_and_keeps_its_structure(tmp_path: Path) -> None:
    model = Tied().eval()
    model.block.train()
    x = torch.tensor([0, 3, 4])

    back = there_and_back(model, tmp_path)

    assert repr(back) == repr(model)
    assert [m.training for m in back.modules()] == [m.training for m in model.modules()]
    assert list(back.state_dict()) == list(model.state_dict())
    assert same_state(back, model)
    assert torch.equal(back(x), model(x))


def test_what_was_shared_in_the_model_is_shared(tmp_path: Path) -> None:
    back = there_and_back(Tied(), tmp_path)

    assert back.head.weight is back.embedding.weight
    assert back.again is back.block
    assert back.absent is None and back.nothing is None and back.no_parameter is None


def test_persistence_of_buffers_and_gradients_of_parameters_are_kept(tmp_path: Path) -> None:
    model = Tied()
    model.block[0].weight.requires_grad_(False)

    back = there_and_back(model, tmp_path)

    assert "kept" in back.state_dict() and "dropped" not in back.state_dict()
    assert torch.equal(back.dropped, torch.ones(4))
    assert not back.block[0].weight.requires_grad
    assert back.block[0].bias.requires_grad


def test_constructor_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = NeverBuilt()
    monkeypatch.setattr(nn.Linear, "loading", True, raising=False)

    assert same_state(there_and_back(model, tmp_path), model)


def test_module_says_itself_what_is_kept_of_it(tmp_path: Path) -> None:
    back = there_and_back(WithState(), tmp_path)

    assert back.cache == (2, 2)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layer_keeps_its_flat_weights(make: type[nn.RNNBase], tmp_path: Path) -> None:
    model = make(3, 4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 2, 3)

    back = there_and_back(model, tmp_path)

    assert torch.equal(back(x)[0], model(x)[0])
    assert back._flat_weights[0] is back.weight_ih_l0


@pytest.mark.parametrize(
    "normalise",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
    ],
)
def test_parametrised_layer_comes_back_parametrised(normalise, tmp_path: Path) -> None:
    model = nn.Sequential(normalise(nn.Linear(4, 4)), nn.ReLU()).eval()
    x = torch.randn(2, 4)

    back = there_and_back(model, tmp_path)

    assert parametrize.is_parametrized(back[0], "weight")
    assert type(back[0]).__name__ == "ParametrizedLinear"
    assert list(back.state_dict()) == list(model.state_dict())
    assert torch.equal(back(x), model(x))
    parametrize.remove_parametrizations(back[0], "weight")
    assert torch.equal(back(x), model(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("normalise", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_layer_normalised_by_a_hook_comes_back_with_it(normalise, tmp_path: Path) -> None:
    model = normalise(nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)

    back = there_and_back(model, tmp_path)

    assert torch.equal(back(x), model(x))
    assert list(back.state_dict()) == list(model.state_dict())


def test_blocks_come_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    poptorch.BeginBlock(model[0], "first", ipu_id=1)
    with_function = nn.Sequential(poptorch.BeginBlock(F.relu, "second"))

    back, back_function = there_and_back(nn.ModuleList([model, with_function]), tmp_path)

    assert "BeginBlock(user_id=first, ipu_id=1)" in poptorch.module_repr(back)
    assert torch.equal(back_function(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
    poptorch.removeBlocks(back)
    assert "BeginBlock" not in poptorch.module_repr(back)


def test_hook_that_came_back_and_a_new_one_do_not_replace_each_other(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for _ in range(3):
        model.register_forward_pre_hook(lambda *_: None).remove()
    poptorch.BeginBlock(model, "a")

    back = there_and_back(model, tmp_path)
    back.register_forward_pre_hook(lambda *_: None)

    assert len(back._forward_pre_hooks) == 2


def test_other_hooks_are_refused_by_name(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda module, args, result: result * 2)

    with pytest.raises(StoreError, match=r"model\.0\.forward_hooks has .*<lambda>.*hooks"):
        there_and_back(model, tmp_path)


def test_local_class_is_refused_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    with pytest.raises(StoreError, match=r"model\.0 needs the class .*Local") as caught:
        there_and_back(nn.Sequential(Local(2, 2)), tmp_path)

    assert "export_model=False" in str(caught.value.fix)
    assert "top level" in str(caught.value.fix)


def test_attribute_that_is_a_lambda_is_refused_with_its_place(tmp_path: Path) -> None:
    model = Tied()
    model.block[1].act = {"deep": [lambda x: x]}

    with pytest.raises(StoreError, match=r"model\.block\.1\.act\['deep'\]\[0\] needs the function"):
        there_and_back(model, tmp_path)


def test_executor_inside_a_model_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.helper = poptorch.inferenceModel(nn.Linear(2, 2))

    with pytest.raises(StoreError, match=r"model\.helper is a .*PoplarExecutor"):
        there_and_back(model, tmp_path)


def test_part_that_is_wrapped_in_strict_mode_comes_back_plain(tmp_path: Path) -> None:
    part = Regression()
    whole = nn.Sequential(part)
    trainer = poptorch.trainingModel(part, strict())
    trainer(*data(1))
    executor = poptorch.inferenceModel(whole, strict())
    x = torch.randn(1, 3)
    expected = executor(x)

    executor.save(tmp_path / "whole")
    back = poptorch.load(tmp_path / "whole")

    assert type(back.model[0]) is Regression
    assert type(back.model[0].fc.weight) is nn.Parameter
    assert torch.equal(back(x), expected)
    assert "destroy" not in vars(back.model[0])


def test_buffer_made_as_an_object_comes_back_as_a_buffer(tmp_path: Path) -> None:
    model = nn.Module()
    model.kept = nn.Buffer(torch.ones(2))
    model.dropped = nn.Buffer(torch.ones(2), persistent=False)

    back = there_and_back(model, tmp_path)

    assert [name for name, _ in back.named_buffers()] == ["kept", "dropped"]
    assert list(back.state_dict()) == ["kept"]


def test_copy_of_a_loaded_model_is_as_good_as_one_of_a_built_model(tmp_path: Path) -> None:
    back = there_and_back(Tied(), tmp_path)

    twin = copy.deepcopy(back)

    assert same_state(twin, back)
    assert twin.head.weight is twin.embedding.weight


def test_old_file_meets_a_class_without_an_attribute_it_needs(tmp_path: Path) -> None:
    """The class is gone from its module: the error names it."""
    model = NeverBuilt()
    model.__class__ = nn.Linear
    writer = Writer()
    parts = {"model": writer.value(model, "model")}
    writer.records[0][1] = f"{__name__}:WasRenamed"
    write_export(tmp_path / "file", {}, writer, parts, [])

    with pytest.raises(StoreError, match="WasRenamed") as caught:
        read_export(tmp_path / "file").restore("model", paths=Paths(), whole_model=True)

    assert str(tmp_path / "file") in caught.value.message
