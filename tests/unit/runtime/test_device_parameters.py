"""The state and hyper-parameters of a strict optimizer: there from compilation on, and loadable."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch

X = torch.randn(3)
CLASSES = [
    poptorch.optim.SGD,
    poptorch.optim.Adam,
    poptorch.optim.AdamW,
    poptorch.optim.RMSprop,
    poptorch.optim.LAMB,
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.fc(x) ** 2, reduction="sum")


def compiled(
    kind: type[torch.optim.Optimizer], **values: float
) -> tuple[Model, poptorch.PoplarExecutor, torch.optim.Optimizer]:
    model = Model()
    optimizer = kind(model.parameters(), **values)  # type: ignore[arg-type]
    options = poptorch.Options().strict().engine("reference")
    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(X)
    return model, executor, optimizer


@pytest.mark.parametrize("kind", CLASSES[1:])
def test_state_is_zero_after_compilation_and_changes_with_the_first_step(
    kind: type[torch.optim.Optimizer],
) -> None:
    _, executor, optimizer = compiled(kind, lr=0.1)

    before = optimizer.state_dict()["ipu_state"]
    executor(X)
    after = optimizer.state_dict()["ipu_state"]

    assert before.keys() == after.keys() >= {"Accl1___fc.weight", "Accl1___fc.bias"}
    assert all(not value.any() for value in before.values())
    assert all(value.any() for value in after.values())


def test_plain_sgd_has_no_state() -> None:
    assert compiled(poptorch.optim.SGD, lr=0.1)[2].state_dict()["ipu_state"] == {}


def test_sgd_whose_momentum_may_change_has_velocities_that_can_be_loaded() -> None:
    model, executor, optimizer = compiled(poptorch.optim.SGD, lr=0.0, momentum=0.0)
    state = optimizer.state_dict()
    velocity = state["ipu_state"]["Accl1___fc.bias"] = torch.ones(3)
    state["ipu_param"]["momentum___specific___fc.bias"] = torch.tensor(0.5)
    expected = 0.5 * velocity + 2 * (model.fc.weight @ X + model.fc.bias)

    optimizer.load_state_dict(state)
    executor(X)

    after = optimizer.state_dict()["ipu_state"]
    torch.testing.assert_close(after["Accl1___fc.bias"], expected.detach())
    assert after.keys() == {"Accl1___fc.weight", "Accl1___fc.bias"}


@pytest.mark.parametrize("kind", CLASSES)
def test_loaded_hyper_parameters_are_read_back_and_used(
    kind: type[torch.optim.Optimizer],
) -> None:
    model, executor, optimizer = compiled(kind, lr=0.0)
    name = "scaledLearningRate0" if kind is poptorch.optim.SGD else "learningRate"
    state = optimizer.state_dict()
    state["ipu_param"] = dict(state["ipu_param"])
    state["ipu_param"][f"{name}___specific___fc.bias"] = torch.tensor(0.125)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}

    optimizer.load_state_dict(state)
    executor(X)

    read = optimizer.state_dict()["ipu_param"]
    assert torch.equal(read[f"{name}___specific___fc.bias"], torch.tensor(0.125))
    assert torch.equal(model.fc.weight, before["fc.weight"])
    assert not torch.equal(model.fc.bias, before["fc.bias"])


def test_entries_that_are_not_loaded_keep_their_values() -> None:
    _, executor, optimizer = compiled(poptorch.optim.Adam, lr=0.1)
    state = optimizer.state_dict()
    state["ipu_state"] = {"Accl1___fc.bias": torch.ones(3)}

    optimizer.load_state_dict(state)
    executor(X)

    read = optimizer.state_dict()["ipu_state"]
    assert torch.equal(read["Step___fc.bias"], torch.tensor(1.0))
    assert (read["Accl1___fc.bias"] != 1).all()


def test_a_momentum_that_is_switched_on_later_works() -> None:
    model, executor, _ = compiled(poptorch.optim.RMSprop, lr=0.1, momentum=0.0)
    executor(X)

    executor.setOptimizer(poptorch.optim.RMSprop(model.parameters(), lr=0.1, momentum=0.5))
    executor(X)
    executor(X)

    assert torch.isfinite(model.fc.weight).all()


def test_another_class_of_the_same_rule_goes_on_with_the_state() -> None:
    model, executor, _ = compiled(torch.optim.Adam, lr=0.1)
    twin, theirs, _ = compiled(torch.optim.Adam, lr=0.1)
    twin.load_state_dict(model.state_dict())
    theirs.copyWeightsToDevice()
    executor(X)
    theirs(X)

    executor.setOptimizer(poptorch.optim.Adam(model.parameters(), lr=0.1))
    executor(X)
    theirs(X)

    assert torch.allclose(model.fc.weight, twin.fc.weight)


def test_everything_can_be_made_variable_at_once() -> None:
    attributes = poptorch.optim.Adam(Model().parameters()).variable_attrs

    attributes._variable_attributes = list(attributes._allowed_attributes)

    assert not any(attributes.isConstant(name) for name in attributes._allowed_attributes)
