"""Optimizers through an executor: groups, changing values, replaced optimizers, refusals."""

import copy
import logging

import pytest
import torch
from tests.unit.runtime.optimizer_runs import (
    Net,
    adam,
    batches,
    eager_step,
    momentum,
    options,
    pair,
    same,
)
from torch import nn

import poptorch
from pantile.errors import ForeignParameter, OptimizerError

# Groups and parameters


def test_each_group_has_its_own_values():
    def make(model):
        groups = [
            {"params": model.first.parameters(), "lr": 0.3},
            {"params": model.second.parameters(), "weight_decay": 0.1},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    executor, model, _, twin, reference = pair(make)

    for batch in batches(3):
        executor(*batch)
        eager_step(twin, reference, batch)

    assert same(model, twin)


def test_a_group_added_later_is_trained_from_then_on():
    def make(model):
        return torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9)

    executor, model, optimizer, twin, reference = pair(make)

    for step, batch in enumerate(batches(4)):
        if step == 2:
            optimizer.add_param_group({"params": model.second.parameters(), "lr": 0.5})
            reference.add_param_group({"params": twin.second.parameters(), "lr": 0.5})
        executor(*batch)
        eager_step(twin, reference, batch)

    assert same(model, twin)


def test_parameters_outside_every_group_and_frozen_ones_keep_their_bits():
    model = Net()
    model.first.bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam([*model.first.parameters(), model.second.bias], lr=0.1)
    executor = poptorch.trainingModel(model, options(), optimizer)

    for batch in batches(2):
        executor(*batch)

    after = model.state_dict()
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept == {"first.bias", "second.weight"}


def test_a_parameter_without_a_gradient_is_left_alone():
    class Unused(Net):
        def __init__(self):
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    model = Unused()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    executor = poptorch.trainingModel(model, options(), optimizer)

    for batch in batches(2):
        executor(*batch)

    assert torch.equal(model.spare, torch.ones(3))
    assert model.spare not in optimizer.state


@pytest.mark.parametrize("added_later", [False, True])
def test_a_parameter_of_another_model_is_refused(added_later):
    model, other = Net(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
    executor = poptorch.trainingModel(model, options(), optimizer)
    batch = next(batches(1))
    if added_later:
        executor(*batch)
    optimizer.add_param_group({"params": [other]})

    with pytest.raises(ForeignParameter, match="group 1") as caught:
        executor(*batch)

    assert isinstance(caught.value, KeyError)


class Own(nn.Module):
    """Trains one parameter of any shape and type."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return poptorch.identity_loss((x * self.weight).abs().sum(), reduction="none")


NAMES = ["SGD", "Adam", "RAdam", "Rprop", "ASGD", "RMSprop"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "weight",
    [torch.tensor(2.0), torch.tensor([0.5]), torch.tensor([1 + 1j, 2.0]), torch.ones(2).double()],
    ids=["0-d", "one element", "complex", "double"],
)
def test_parameters_of_any_kind_are_updated_as_by_torch(name, weight):
    model = Own(weight.clone())
    twin = Own(weight.clone())
    optimizer, reference = (
        getattr(torch.optim, name)(m.parameters(), lr=0.1) for m in (model, twin)
    )
    executor = poptorch.trainingModel(model, options(), optimizer)

    for x in torch.randn(4, 3, 2)[..., : weight.numel()]:
        executor(x)
        reference.zero_grad()
        twin(x).backward()
        reference.step()

    assert torch.equal(model.weight, twin.weight)


def test_tied_weights_are_updated_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return poptorch.identity_loss(self.two(self.one(x)).square().mean(), reduction="none")

    model = Tied()
    twin = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, options(), adam(model))
    reference = adam(twin)

    for x in torch.randn(3, 2, 4):
        executor(x)
        reference.zero_grad()
        twin(x).backward()
        reference.step()

    assert same(model, twin)


# Values that change between steps


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (momentum, {"lr": 0.01, "momentum": 0.5, "dampening": 0.2, "weight_decay": 0.1}),
        (momentum, {"nesterov": True}),
        (momentum, {"maximize": True, "weight_decay": 0.3}),
        (momentum, {"momentum": 0.0}),
        (adam, {"lr": 0.5, "betas": (0.5, 0.6), "eps": 0.1, "weight_decay": 0.2}),
        (adam, {"lr": torch.tensor(0.25)}),
        (adam, {"lr": 0.0}),
        (lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01), {"alpha": 0.5, "lr": 1}),
    ],
)
def test_any_attribute_may_change_between_steps(make, changes):
    executor, model, optimizer, twin, reference = pair(make)

    original = {name: optimizer.param_groups[0][name] for name in changes}
    schedule = {2: changes, 4: original}

    for step, batch in enumerate(batches(6)):
        for chosen in (optimizer, reference):
            chosen.param_groups[0].update(copy.deepcopy(schedule.get(step, {})))
        executor(*batch)
        eager_step(twin, reference, batch)
        assert same(model, twin), step

    assert len(executor._compiled) == 1


def test_new_numbers_need_no_new_trace():
    executor, model, optimizer, twin, reference = pair(adam)
    for batch in batches(2):
        executor(*batch)
        eager_step(twin, reference, batch)
    captures = executor._update.captures

    for step, batch in enumerate(batches(3)):
        for group in (optimizer.param_groups[0], reference.param_groups[0]):
            group.update(lr=0.1 / (step + 1), betas=(0.9 - 0.1 * step, 0.99), eps=1e-7)
        executor(*batch)
        eager_step(twin, reference, batch)

    assert executor._update.captures == captures
    assert same(model, twin)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scheduler_is_followed_without_set_optimizer(fused):
    def make(model):
        return torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)

    executor, model, optimizer, twin, reference = pair(make)
    ours = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    theirs = torch.optim.lr_scheduler.ExponentialLR(reference, 0.5)

    for batch in batches(4):
        executor(*batch)
        ours.step()
        eager_step(twin, reference, batch)
        theirs.step()

    assert same(model, twin)
    assert executor._update.captures == 2


def test_a_learning_rate_tensor_is_read_at_every_step():
    def make(model):
        return torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.5)

    executor, model, optimizer, twin, reference = pair(make)

    for batch in batches(4):
        executor(*batch)
        eager_step(twin, reference, batch)
        for chosen in (optimizer, reference):
            chosen.param_groups[0]["lr"].mul_(0.5)

    assert same(model, twin)


def test_a_branch_on_the_step_count_is_followed():
    # RAdam rectifies from its sixth step on.
    executor, model, _, twin, reference = pair(lambda m: torch.optim.RAdam(m.parameters(), lr=0.05))

    for batch in batches(8):
        executor(*batch)
        eager_step(twin, reference, batch)

    assert same(model, twin)
    assert executor._update.captures == 3


def test_betas_in_a_list_may_be_changed_in_place():
    executor, model, optimizer, twin, reference = pair(adam)
    for chosen in (optimizer, reference):
        chosen.param_groups[0]["betas"] = [0.9, 0.99]

    for batch in batches(4):
        executor(*batch)
        eager_step(twin, reference, batch)
        for chosen in (optimizer, reference):
            chosen.param_groups[0]["betas"][0] = 0.3

    assert same(model, twin)


def test_step_hooks_are_called_once_an_update():
    model = Net()
    optimizer = momentum(model)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    executor = poptorch.trainingModel(model, options(), optimizer)

    for batch in batches(2):
        executor(*batch)

    assert calls == ["before", "after"] * 2


# Another optimizer object


def test_a_new_optimizer_of_the_same_type_goes_on_with_the_state():
    executor, model, _, twin, reference = pair(adam)
    first, second = batches(2)
    executor(*first)
    eager_step(twin, reference, first)
    reference.param_groups[0]["lr"] = 0.5

    new = torch.optim.Adam(model.parameters(), lr=0.5)
    executor.setOptimizer(new)
    executor(*second)
    eager_step(twin, reference, second)

    assert same(model, twin)
    assert new.state[model.first.bias]["step"].item() == 2


def test_the_old_optimizer_keeps_the_state_it_had():
    model = Net()
    old = adam(model)
    executor = poptorch.trainingModel(model, options(), old)
    first, second = batches(2)
    executor(*first)
    kept = copy.deepcopy(old.state_dict()["state"])

    executor.setOptimizer(torch.optim.Adam(model.parameters(), lr=0.5))
    executor(*second)

    torch.testing.assert_close(old.state_dict()["state"], kept, rtol=0, atol=0)


def test_an_optimizer_of_another_type_starts_afresh():
    executor, model, _, twin, _ = pair(adam)
    first, second = batches(2)
    executor(*first)
    twin.load_state_dict(model.state_dict())

    executor.setOptimizer(momentum(model))
    executor(*second)
    eager_step(twin, momentum(twin), second)

    assert same(model, twin)


# Refusals


def test_an_optimizer_that_reads_device_values_is_refused():
    class Curious(torch.optim.SGD):
        def step(self, closure=None):
            if self.param_groups[0]["params"][0].sum().item() > 0:
                super().step(closure)

    model = Net()
    executor = poptorch.trainingModel(model, options(), Curious(model.parameters(), lr=0.1))

    with pytest.raises(OptimizerError, match="branches in Python on a value"):
        executor(*next(batches(1)))


def test_a_users_own_rule_is_recorded():
    class SignDescent(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.sign(), alpha=group["lr"])

    executor, model, _, twin, reference = pair(lambda m: SignDescent(m.parameters(), lr=0.01))

    for batch in batches(3):
        executor(*batch)
        eager_step(twin, reference, batch)

    assert same(model, twin)


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -0.5])
def test_a_learning_rate_that_is_no_step_is_refused(lr):
    model = Net()
    optimizer = momentum(model)
    optimizer.param_groups[0]["lr"] = lr

    with pytest.raises(OptimizerError, match="lr of parameter group 0"):
        poptorch.trainingModel(model, options(), optimizer)


def test_set_optimizer_wants_an_optimizer():
    model = Net()
    executor = poptorch.trainingModel(model, options(), momentum(model))

    with pytest.raises(OptimizerError, match="dict"):
        executor.setOptimizer({"lr": 0.1})


def test_nothing_is_logged_when_attributes_change_by_default(caplog):
    executor, _, optimizer, _, _ = pair(momentum)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    caplog.set_level(logging.WARNING)

    executor.setOptimizer(optimizer)

    assert not caplog.records
