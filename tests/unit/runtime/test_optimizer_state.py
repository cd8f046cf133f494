"""An optimizer's state on the host: to plain torch and back, loaded, kept over detaching."""

import copy

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

import poptorch


@pytest.mark.parametrize(
    "make",
    [
        adam,
        momentum,
        lambda m: torch.optim.NAdam(m.parameters(), lr=0.02),
        lambda m: poptorch.optim.AdamW(m.parameters(), lr=0.02),
        lambda m: poptorch.optim.RMSprop(m.parameters(), lr=0.02, momentum=0.5),
    ],
)
def test_training_goes_on_in_plain_torch_and_comes_back(make):
    executor, model, optimizer, twin, reference = pair(make)
    stages = list(batches(6))
    for batch in stages[:2]:
        executor(*batch)
        eager_step(twin, reference, batch)

    # To plain torch …
    plain_model = copy.deepcopy(twin)
    plain = getattr(torch.optim, type(optimizer).__name__)(plain_model.parameters(), lr=0.9)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for batch in stages[2:4]:
        eager_step(plain_model, plain, batch)
        eager_step(twin, reference, batch)
    assert same(plain_model, twin)

    # … and back, between two steps.
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), plain_model.parameters(), strict=True):
            ours.copy_(theirs)
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    for batch in stages[4:]:
        executor(*batch)
        eager_step(twin, reference, batch)
    assert same(model, twin)
    states = zip(optimizer.state.values(), reference.state.values(), strict=True)
    for ours, theirs in states:
        torch.testing.assert_close(dict(ours), dict(theirs), rtol=0, atol=0)


def test_a_state_loaded_before_the_first_step_is_used():
    warm = Net()
    warm_optimizer = adam(warm)
    for batch in batches(3):
        eager_step(warm, warm_optimizer, batch)
    model = copy.deepcopy(warm)
    optimizer = adam(model)
    optimizer.load_state_dict(copy.deepcopy(warm_optimizer.state_dict()))
    executor = poptorch.trainingModel(model, options(), optimizer)

    for batch in batches(2, seed=5):
        executor(*batch)
        eager_step(warm, warm_optimizer, batch)

    assert same(model, warm)
    assert optimizer.state[model.first.bias]["step"].item() == 5


@pytest.mark.parametrize("end", ["destroy", "detachFromDevice"])
def test_the_state_outlives_the_device(end):
    executor, model, optimizer, twin, reference = pair(adam)
    first, second = batches(2)
    executor(*first)
    eager_step(twin, reference, first)

    getattr(executor, end)()
    executor(*second)
    eager_step(twin, reference, second)

    assert same(model, twin)
    assert optimizer.state[model.first.bias]["step"].item() == 2
