"""The short way of a repeated call: it notices whatever the long way would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.native.runs import (
    Pair,
    assert_close,
    batch,
    inference_pair,
    options,
    training_pair,
)
from torch import nn

import poptorch
from pantile.errors import Error, InputMismatch
from pantile.runtime.native.lane_library import LANE

Executor = poptorch.PoplarExecutor


def optimizer_of(executor: Executor) -> Any:
    return executor._control.optimizer


def hot_pair(make: Callable[[Any], torch.optim.Optimizer]) -> Pair:
    """Two executors, of which the native one takes the short way."""
    pair = training_pair(make)
    pair.check(*batch(), calls=4)
    assert pair.native._hot is not None
    return pair


def edit_both(pair: Pair, edit: Callable[[Executor], object]) -> None:
    for executor in (pair.native, pair.reference):
        edit(executor)


def set_lr(executor: Executor) -> None:
    optimizer_of(executor).param_groups[0]["lr"] = 0.5


def reload_state(executor: Executor) -> None:
    optimizer_of(executor).load_state_dict(optimizer_of(executor).state_dict())


def clear_state(executor: Executor) -> None:
    optimizer_of(executor).state.clear()


def replace_moments(executor: Executor) -> None:
    state = optimizer_of(executor).state
    for parameter, entries in list(state.items()):
        state[parameter] = {key: torch.zeros_like(value) for key, value in entries.items()}


def replace_one_moment(executor: Executor) -> None:
    entries = next(iter(optimizer_of(executor).state.values()))
    entries["exp_avg"] = torch.ones_like(entries["exp_avg"])


def replace_one_step(executor: Executor) -> None:
    """By a tensor of the same value, which `==` could not tell from the old one."""
    entries = next(iter(optimizer_of(executor).state.values()))
    entries["step"] = entries["step"].clone()


def set_betas(executor: Executor) -> None:
    optimizer_of(executor).param_groups[0]["betas"] = (0.5, 0.6)


def turn_on_decay(executor: Executor) -> None:
    optimizer_of(executor).param_groups[0]["weight_decay"] = 0.5


def maximize(executor: Executor) -> None:
    optimizer_of(executor).param_groups[0]["maximize"] = True


def drop_a_parameter(executor: Executor) -> None:
    optimizer_of(executor).param_groups[0]["params"].pop()


def move_memory(executor: Executor) -> None:
    weight = executor.model.first.weight
    weight.data = weight.data.clone() * 0.5


def other_values(executor: Executor) -> None:
    with torch.no_grad():
        executor.model.first.weight.mul_(0.5)


OPTIMIZER_EDITS = (
    set_lr,
    set_betas,
    turn_on_decay,
    maximize,
    reload_state,
    clear_state,
    replace_moments,
    replace_one_moment,
    replace_one_step,
    drop_a_parameter,
    move_memory,
    other_values,
)


@pytest.mark.parametrize("edit", OPTIMIZER_EDITS)
def test_an_edit_between_hot_calls_is_seen(edit: Callable[[Executor], object]) -> None:
    pair = hot_pair(lambda p: torch.optim.Adam(p, lr=0.01))
    edit_both(pair, edit)
    pair.check(*batch(), calls=3)


@pytest.mark.parametrize("name", ["max_grad_norm", "loss_scaling"])
def test_a_setting_of_no_group_is_seen(name: str) -> None:
    pair = hot_pair(lambda p: poptorch.optim.SGD(p, lr=0.1))
    edit_both(pair, lambda executor: setattr(optimizer_of(executor), name, 0.125))
    pair.check(*batch(), calls=3)


def test_a_learning_rate_in_a_tensor_or_a_list_is_read_at_each_call() -> None:
    pair = hot_pair(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)))
    edit_both(pair, lambda e: optimizer_of(e).param_groups[0]["lr"].fill_(0.1))
    pair.check(*batch())
    edit_both(pair, lambda e: optimizer_of(e).param_groups[0].update(betas=[0.9, 0.99]))
    pair.check(*batch(), calls=3)
    edit_both(pair, lambda e: optimizer_of(e).param_groups[0]["betas"].__setitem__(0, 0.5))
    pair.check(*batch(), calls=2)


def test_a_scheduler_does_not_send_calls_the_long_way() -> None:
    pair = hot_pair(lambda p: torch.optim.SGD(p, lr=0.1))
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer_of(e), 0.5)
        for e in (pair.native, pair.reference)
    ]
    pair.check(*batch())  # the long way once: the scheduler has added a setting
    hot = pair.native._hot
    for _ in range(4):
        for scheduler in schedulers:
            scheduler.step()
        pair.check(*batch())

    assert pair.native._hot is hot


class Square(nn.Module):
    """A square weight, and parameters of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight * self.scale + self.shift


def transpose_weight(model: nn.Module) -> None:
    model.weight.data = model.weight.data.t()


def replace_by_equal(model: nn.Module) -> None:
    model.scale = nn.Parameter(torch.ones(1))


def replace_and_edit(model: nn.Module) -> None:
    replace_by_equal(model)
    with torch.no_grad():
        model.scale.mul_(3)


def replace_buffer(model: nn.Module) -> None:
    model.shift = torch.tensor(7.0)


def double_weight(model: nn.Module) -> None:
    model.weight.data = model.weight.data.double().float() * 2


MODEL_EDITS = (
    transpose_weight,
    replace_by_equal,
    replace_and_edit,
    replace_buffer,
    double_weight,
)


@pytest.mark.parametrize("edit", MODEL_EDITS)
def test_an_edit_of_a_model_for_inference_is_seen(edit: Callable[[nn.Module], None]) -> None:
    pair = inference_pair(Square)
    x = batch()[0]
    pair.check(x, calls=4)
    assert pair.native._hot is not None

    edit_both(pair, lambda executor: edit(executor.model))
    pair.check(x, calls=3)
    with torch.no_grad():
        edit_both(pair, lambda executor: executor.model.scale.mul_(0.5))
    pair.check(x, calls=2)


ARGUMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other values": lambda x: x + 1,
    "other rows": lambda x: x[:2],
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], 2)[:, :, 0],
    "expanded": lambda x: x[:1].expand(4, 4),
    "double": torch.Tensor.double,
    "with a gradient": lambda x: x.clone().requires_grad_(),
    "a parameter": nn.Parameter,
    "a slice": lambda x: torch.cat([x, x])[2:6],
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("gradients", [True, False])
def test_an_argument_of_another_kind_is_read_right(kind: str, gradients: bool) -> None:
    scale = torch.linspace(0.5, 2, 4)
    model = poptorch.inferenceModel(Scaled(scale), options())
    x = batch()[0]
    with torch.set_grad_enabled(gradients):
        for _ in range(4):
            model(x)
        assert model._hot is not None
        changed = ARGUMENTS[kind](x)
        for _ in range(3):
            result = model(changed)
            assert_close(result, (changed * scale).detach())
            assert not result.requires_grad


class Scaled(nn.Module):
    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_one_element_with_a_pending_negation_is_refused() -> None:
    model = poptorch.inferenceModel(Scaled(torch.ones(1)), options())
    x = torch.tensor([2.0])
    for _ in range(4):
        assert model(x).item() == 2
    assert model._hot is not None

    with pytest.raises(InputMismatch, match="pending negation"):
        model(torch._neg_view(x))


def test_modes_round_a_hot_call_are_seen() -> None:
    pair = inference_pair(Square)
    x = batch()[0]
    pair.check(x, calls=4)
    with torch.inference_mode():
        inside = pair.native(x)
    assert not inside.is_inference()
    pair.check(x, calls=3)
    with torch.autocast("cpu", torch.bfloat16):
        pair.check(x, calls=3)
        assert pair.native(x).dtype is pair.reference(x).dtype
    pair.check(x, calls=2)


def test_a_default_device_does_not_move_the_results() -> None:
    pair = inference_pair(Square)
    x = batch()[0]
    pair.check(x, calls=4)
    expected = pair.native(x)
    with torch.device("meta"):
        result = pair.native(x)

    assert torch.equal(result, expected)


def test_memory_that_was_given_back_is_an_error() -> None:
    model = poptorch.inferenceModel(Scaled(torch.ones(4)), options())
    x = batch()[0].clone()
    for _ in range(4):
        model(x)
    x.untyped_storage().resize_(0)

    with pytest.raises((Error, RuntimeError)):
        model(x)


def test_results_of_hot_calls_are_the_callers_own() -> None:
    model = poptorch.inferenceModel(Scaled(torch.ones(4)), options())
    x = batch()[0]
    results = [model(x + i) for i in range(6)]

    for i, result in enumerate(results):
        assert torch.equal(result, x + i)
        with pytest.raises(Error, match="backward"):
            result.backward()


def test_the_counters_are_those_of_the_latest_call() -> None:
    pair = hot_pair(lambda p: torch.optim.SGD(p, lr=0.1))
    first = pair.native.getPerfCounters()
    pair.native(*batch())
    second = pair.native.getPerfCounters()

    assert [len(tensors) for tensors in second.values()] == [2, 2, 2, 2]
    assert second["input"][0][0] > first["output_complete"][0][0]


def test_an_optimizer_that_rests_is_asked_about_once() -> None:
    pair = hot_pair(lambda p: torch.optim.Adam(p, lr=0.01))
    assert LANE.wait() is not None
    pair.check(*batch(), calls=3)
    known = pair.native._hot._update
    left = known._promises_left
    pair.check(*batch(), calls=5)
    assert known._promises_left == left
    edit_both(pair, set_lr)
    pair.check(*batch(), calls=5)  # follows the number, then is told to rest again
    assert known._promises_left == left - 1


def test_a_hook_that_comes_late_is_run() -> None:
    pair, calls = hot_pair(lambda p: torch.optim.Adam(p, lr=0.01)), []
    assert LANE.wait() is not None
    pair.check(*batch(), calls=3)
    optimizer_of(pair.native).register_step_post_hook(lambda *_: calls.append(1))
    pair.check(*batch(), calls=2)
    assert len(calls) == 2
