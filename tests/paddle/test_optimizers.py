"""Twenty steps of each optimizer, beside Paddle's CPU executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import (
    assert_close,
    batches,
    classifier,
    dense,
    persistables,
    train_with_paddle,
    values_in,
)

from pantile.paddle import api

_optimizer = paddle.optimizer
_l2 = paddle.regularizer.L2Decay(0.01)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: _optimizer.SGD(0.05),
    "sgd-l2": lambda: _optimizer.SGD(0.05, weight_decay=_l2),
    "sgd-l1": lambda: _optimizer.SGD(0.05, weight_decay=paddle.regularizer.L1Decay(0.01)),
    "sgd-clip-value": lambda: _optimizer.SGD(0.05, grad_clip=paddle.nn.ClipGradByValue(0.01)),
    "sgd-clip-norm": lambda: _optimizer.SGD(0.05, grad_clip=paddle.nn.ClipGradByNorm(0.1)),
    "momentum": lambda: _optimizer.Momentum(0.02, 0.9, weight_decay=_l2),
    "momentum-nesterov": lambda: _optimizer.Momentum(0.02, 0.9, use_nesterov=True),
    "adam": lambda: _optimizer.Adam(1e-3),
    "adam-clip": lambda: _optimizer.Adam(
        1e-3, weight_decay=0.01, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5)
    ),
    "adamw": lambda: _optimizer.AdamW(
        1e-3, weight_decay=0.05, apply_decay_param_fun=lambda name: "w_0" in name
    ),
    "lamb": lambda: _optimizer.Lamb(
        2e-3, lamb_weight_decay=0.01, exclude_from_weight_decay_fn=lambda p: "b_0" in p.name
    ),
    "adamax": lambda: _optimizer.Adamax(1e-3, weight_decay=_l2),
    "adagrad": lambda: _optimizer.Adagrad(1e-2, initial_accumulator_value=0.1),
    "adadelta": lambda: _optimizer.Adadelta(0.5, epsilon=1e-5, rho=0.9),
    "rmsprop": lambda: _optimizer.RMSProp(1e-3, rho=0.9, momentum=0.8),
    "rmsprop-centered": lambda: _optimizer.RMSProp(1e-3, centered=True, epsilon=1e-3),
}


def _training() -> api.IpuStrategy:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=4)
    return strategy


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_agree_with_paddle(name: str) -> None:
    built = classifier(OPTIMIZERS[name]().minimize, network=dense, size=8)
    feeds, names = batches(20, 4, size=8), persistables(built)
    theirs, ours = built.start(), built.start()
    assert_close(values_in(ours, names), values_in(theirs, names), 0.0)
    expected = train_with_paddle(built, theirs, feeds)

    model = api.compile(built.main, ["x", "y"], [built.loss], strategy=_training(), scope=ours)
    losses = [model.run(feed)[0].item() for feed in feeds]
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda: paddle.optimizer.lr.StepDecay(0.05, 3, gamma=0.5),
        lambda: paddle.optimizer.lr.LinearWarmup(0.05, 5, 0.0, 0.05),
        lambda: paddle.optimizer.lr.CosineAnnealingDecay(0.05, 10),
    ],
    ids=["steps", "warm-up", "cosine"],
)
def test_a_learning_rate_schedule_is_followed_without_compiling_again(schedule: Any) -> None:
    scheduler = schedule()
    built = classifier(_optimizer.Momentum(scheduler).minimize, network=dense, size=8)
    feeds, names = batches(12, 4, size=8), persistables(built)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds, scheduler)

    scheduler.step(0)
    model = api.compile(built.main, ["x", "y"], [built.loss], strategy=_training(), scope=ours)
    losses = []
    for feed in feeds:
        losses.append(model.run(feed)[0].item())
        scheduler.step()
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)
    assert len(model.graphs) == 1


def test_lenet_with_batch_norm_and_adam_agrees_with_paddle() -> None:
    built = classifier(_optimizer.Adam(1e-3).minimize)
    feeds, names = batches(20, 16), persistables(built)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=16)

    model = api.compile(built.main, ["x", "y"], [built.loss], strategy=strategy, scope=ours)
    losses = [model.run(feed)[0].item() for feed in feeds]
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)


def test_powers_of_beta_may_be_step_counts_as_the_ipu_left_them() -> None:
    built = classifier(_optimizer.Adam(1e-3).minimize, network=dense, size=8)
    feeds, names = batches(3, 4, size=8), persistables(built)
    plain, counted = built.start(), built.start()
    for name in names:
        if "pow_acc" in name:
            counted.find_var(name).get_tensor().set(np.zeros(1, "float32"), paddle.CPUPlace())

    for scope in (plain, counted):
        model = api.compile(built.main, ["x", "y"], [built.loss], strategy=_training(), scope=scope)
        for feed in feeds:
            model.run(feed)
        model.weights_to_host()

    assert_close(values_in(counted, names), values_in(plain, names), 0.0)
    after = values_in(plain, [n for n in names if "beta1_pow_acc" in n])
    for power in after.values():
        np.testing.assert_allclose(power, 0.9**4, rtol=1e-6)
