"""Every configuration of torch's optimizer database: five steps through an executor, bit for bit.

The reference is torch's own `step()` on the gradients eager PyTorch computes. It runs on plain
tensors, because with `differentiable=True` torch refuses to update a leaf that requires gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal import common_optimizers as database

import poptorch
from pantile.errors import OptimizerError

STEPS = 5
UNSUPPORTED = {"LBFGS", "SparseAdam"}
CASES = [
    (info, case)
    for info in database.optim_db
    for case in database._get_optim_inputs_including_global_cliquey_kwargs(
        "cpu", torch.float32, info
    )
]


class Net(nn.Module):
    """Two layers; without biases for rules that take matrices only."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5, bias=bias)
        self.second = nn.Linear(5, 3, bias=bias)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.second(torch.tanh(self.first(x)))
        return out, F.cross_entropy(out, label)


def own(values: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with tensors of their own."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield (
            torch.randn(6, 4, generator=generator),
            torch.randint(0, 3, (6,), generator=generator),
        )


def check_five_steps(optimizer_class: Any, settings: dict[str, Any]) -> None:
    model = Net(bias=optimizer_class is not torch.optim.Muon)
    eager = copy.deepcopy(model)
    optimizer = optimizer_class(model.parameters(), **own(settings))
    weights = [p.detach() for p in eager.parameters()]
    reference = optimizer_class(weights, **own(settings))
    executor = poptorch.trainingModel(model, options(), optimizer)

    for step, (x, label) in enumerate(batches(STEPS)):
        executor(x, label)
        gradients = torch.autograd.grad(eager(x, label)[1], list(eager.parameters()))
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        reference.step()
        for ours, weight in zip(model.parameters(), weights, strict=True):
            assert torch.equal(ours, weight), f"step {step}"

    for ours, weight in zip(model.parameters(), weights, strict=True):
        check_state(optimizer.state[ours], reference.state[weight])


def check_state(ours: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert ours.keys() == wanted.keys()
    for key, value in wanted.items():
        assert type(ours[key]) is type(value), key
        torch.testing.assert_close(ours[key], value, rtol=0, atol=0, msg=key)


def case_id(case: tuple[Any, Any]) -> str:
    info, settings = case
    return f"{info.optim_cls.__name__}: {settings.desc}"


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[0].optim_cls.__name__ not in UNSUPPORTED], ids=case_id
)
def test_five_steps_equal_torchs(case: tuple[Any, Any]) -> None:
    info, settings = case

    check_five_steps(info.optim_cls, settings.kwargs)


@pytest.mark.parametrize(
    "info", [i for i in database.optim_db if "foreach" in i.supported_impls], ids=lambda i: i.name
)
@pytest.mark.parametrize("foreach", [True, False])
def test_five_steps_equal_torchs_with_and_without_foreach(info: Any, foreach: bool) -> None:
    settings = info.optim_inputs_func(device="cpu")[-1]

    check_five_steps(info.optim_cls, {**settings.kwargs, "foreach": foreach})


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Rprop", "ASGD", "Adadelta"])
def test_capturable_changes_nothing_on_a_cpu(name: str) -> None:
    cls = getattr(torch.optim, name)
    model = Net(bias=True)
    eager = copy.deepcopy(model)
    executor = poptorch.trainingModel(
        model, options(), cls(model.parameters(), lr=0.01, capturable=True)
    )
    plain = poptorch.trainingModel(eager, options(), cls(eager.parameters(), lr=0.01))

    for x, label in batches(2):
        executor(x, label)
        plain(x, label)

    assert all(map(torch.equal, model.parameters(), eager.parameters()))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_an_optimizer_that_cannot_be_static_is_refused(name: str) -> None:
    model = Net(bias=True)
    optimizer = getattr(torch.optim, name)(list(model.parameters()))

    with pytest.raises(OptimizerError, match=name):
        poptorch.trainingModel(model, options(), optimizer)


ERRORS = [
    (info, error)
    for info in database.optim_db
    for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32)
]


class Holder(nn.Module):
    """Holds the parameters of an error input; the loss reaches all of them."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self) -> torch.Tensor:
        total = sum((p * p).abs().sum() for p in self.held)
        return poptorch.identity_loss(total, reduction="none")


@pytest.mark.filterwarnings("error:.*duplicate parameters.*:UserWarning")
@pytest.mark.parametrize("case", ERRORS, ids=lambda c: f"{c[0].name}: {c[1].error_regex[:40]}")
def test_error_inputs_raise_the_same_class(case: tuple[Any, Any]) -> None:
    info, error = case
    given = error.optimizer_error_input
    if error.error_on is database.OptimizerErrorEnum.CONSTRUCTION_ERROR:
        with pytest.raises(error.error_type):
            info.optim_cls(given.params, **given.kwargs)
        return
    model = Holder([nn.Parameter(p.detach()) for p in given.params])

    with pytest.raises(error.error_type) as caught:
        poptorch.trainingModel(
            model, options(), info.optim_cls(list(model.parameters()), **given.kwargs)
        )()

    assert isinstance(caught.value, OptimizerError)
