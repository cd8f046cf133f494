"""Random numbers: eager's without a seed, streams of one's own with it."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import Pass, options
from torch import nn

import poptorch


def dropout(x):
    return nn.functional.dropout(x, 0.5)


def noise(x):
    return x + torch.rand(4)


def seeded(seed=7, **setters):
    state = torch.get_rng_state()
    opts = options(randomSeed=seed, **setters)
    torch.set_rng_state(state)
    return opts


def test_without_a_seed_the_numbers_are_eagers():
    model = poptorch.inferenceModel(Pass(dropout), options(deviceIterations=3))
    x = torch.ones(12)
    torch.manual_seed(3)

    out = model(x)

    torch.manual_seed(3)
    assert torch.equal(out, torch.cat([dropout(part) for part in x.split(4)]))


def test_every_micro_batch_has_its_own_mask():
    opts = seeded(deviceIterations=4, replicationFactor=2)

    masks = poptorch.inferenceModel(Pass(dropout), opts)(torch.ones(8 * 64)).reshape(8, 64)

    assert len({tuple(mask.tolist()) for mask in masks}) == 8


def test_the_same_seed_gives_the_same_runs_and_runs_differ():
    first = poptorch.inferenceModel(Pass(noise), seeded())
    second = poptorch.inferenceModel(Pass(noise), seeded())
    other = poptorch.inferenceModel(Pass(noise), seeded(8))
    x = torch.zeros(4)

    one, two = first(x), first(x)

    assert torch.equal(second(x), one)
    assert torch.equal(second(x), two)
    assert not torch.equal(one, two)
    assert not torch.equal(other(x), one)


def test_a_seeded_model_leaves_the_hosts_generator_alone():
    model = poptorch.inferenceModel(Pass(noise), seeded())
    before = torch.get_rng_state()

    model(torch.zeros(4))

    assert torch.equal(torch.get_rng_state(), before)


def test_setting_a_seed_seeds_the_host_at_once():
    poptorch.Options().randomSeed(5)
    drawn = torch.rand(3)

    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("opts", [options, seeded], ids=["unseeded", "seeded"])
def test_a_saved_state_resumes_exactly(opts):
    model = poptorch.inferenceModel(Pass(noise), opts())
    x = torch.zeros(4)
    model(x)
    state = model.rng_state

    expected = [model(x), model(x)]
    model.rng_state = state

    assert all(torch.equal(model(x), out) for out in expected)


def test_a_seeded_state_resumes_in_another_executor():
    first = poptorch.inferenceModel(Pass(noise), seeded(replicationFactor=2))
    x = torch.zeros(8)
    first(x)
    second = poptorch.inferenceModel(Pass(noise), seeded(99, replicationFactor=2))
    second.compile(x)

    second.rng_state = first.rng_state

    assert first.rng_state[0] == 7
    assert torch.equal(second(x), first(x))


def test_the_state_survives_detaching():
    model, straight = (poptorch.inferenceModel(Pass(noise), seeded()) for _ in range(2))
    x = torch.zeros(4)
    model(x)
    model.detachFromDevice()
    straight(x)

    assert torch.equal(model(x), straight(x))


def test_a_state_for_another_number_of_replicas_is_refused():
    model = poptorch.inferenceModel(Pass(noise), seeded())
    model(torch.zeros(4))

    with pytest.raises(poptorch.Error, match="rng_state has 3 numbers"):
        model.rng_state = [7, 0, 0]


def test_uniform_and_normal_numbers_have_the_right_statistics():
    def forward(x):
        return torch.rand(20000), torch.randn(20000)

    uniform, normal = poptorch.inferenceModel(Pass(forward), seeded())(torch.zeros(1))

    assert abs(uniform.mean() - 0.5) < 1e-2
    assert abs(uniform.var() - 1 / 12) < 1e-2
    assert abs(normal.mean()) < 2e-2
    assert abs(normal.var() - 1) < 5e-2
