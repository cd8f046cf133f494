"""Options that change an update: against Paddle's other optimizer, or the formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import (
    assert_close,
    batches,
    classifier,
    dense,
    train_with_paddle,
    values_in,
)

from pantile.errors import OptionError
from pantile.paddle import api

_GRADIENT = np.array([[0.5], [-1.0], [2.0]])
"""Of the mean of x @ w with one row x: a constant."""


def _strategy(**options: Any) -> api.IpuStrategy:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=4)
    strategy.set_options(options)
    return strategy


def _coupled() -> Any:
    return paddle.optimizer.Adam(1e-2, weight_decay=paddle.regularizer.L2Decay(0.1))


def _decoupled() -> Any:
    return paddle.optimizer.AdamW(1e-2, weight_decay=0.1)


@pytest.mark.parametrize(
    ("optimizer", "mode", "as_if"),
    [
        (_coupled, "decay", _decoupled),
        (_coupled, "l2_regularization", _coupled),
        (_decoupled, "l2_regularization", _coupled),
        (_decoupled, "decay", _decoupled),
    ],
)
def test_the_mode_of_decay_makes_adam_of_adamw_and_back(
    optimizer: Any, mode: str, as_if: Any
) -> None:
    with paddle.utils.unique_name.guard():
        built = classifier(optimizer().minimize, network=dense, size=8)
    with paddle.utils.unique_name.guard():
        other = classifier(as_if().minimize, network=dense, size=8)
    ours, theirs, feeds = built.start(), other.start(), batches(6, 4, size=8)
    expected = train_with_paddle(other, theirs, feeds)
    strategy = _strategy(weight_decay_mode=mode)

    model = api.compile(built.main, ["x", "y"], [built.loss], strategy=strategy, scope=ours)
    losses = [model.run(feed)[0].item() for feed in feeds]
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    names = [parameter.name for parameter in built.main.all_parameters()]
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)


def _trained(optimizer: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The weight before and after three steps with the constant gradient."""
    x = paddle.static.data("x", [1, 3])
    loss = paddle.mean(paddle.static.nn.fc(x, 1, bias_attr=False))
    optimizer.minimize(loss)
    main, scope = paddle.static.default_main_program(), paddle.static.global_scope()
    paddle.static.Executor(paddle.CPUPlace()).run(paddle.static.default_startup_program())
    (weight,) = (parameter.name for parameter in main.all_parameters())
    before = np.array(scope.find_var(weight).get_tensor()).astype(float)
    model = api.compile(main, ["x"], [loss], strategy=_strategy(**options))
    for _ in range(3):
        model.run({"x": _GRADIENT.T.astype("float32")})
    model.weights_to_host()
    return before, np.array(scope.find_var(weight).get_tensor()).astype(float)


@pytest.mark.parametrize(
    ("unbiased", "half"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_adam_without_corrections_and_with_moments_in_half(unbiased: bool, half: bool) -> None:
    before, after = _trained(
        paddle.optimizer.Adam(0.1, beta1=0.7, beta2=0.9),
        use_no_bias_optimizer=not unbiased,
        accl1_type="FLOAT16" if half else "FLOAT",
    )

    first, second, weight = np.zeros((3, 1)), np.zeros((3, 1)), before
    for step in range(1, 4):
        first = 0.7 * first + 0.3 * _GRADIENT
        if half:
            first = first.astype(np.float16).astype(float)
        second = 0.9 * second + 0.1 * _GRADIENT**2
        ones = (1 - 0.7**step, 1 - 0.9**step) if unbiased else (1.0, 1.0)
        weight = weight - 0.1 * (first / ones[0]) / (np.sqrt(second / ones[1]) + 1e-8)
    np.testing.assert_allclose(after, weight, atol=2e-6)


def test_lamb_takes_no_larger_norm_than_it_may() -> None:
    decay = {"lamb_weight_decay": 0.01, "epsilon": 1e-6}
    before, after = _trained(
        paddle.optimizer.Lamb(0.1, **decay), use_no_bias_optimizer=True, max_weight_norm=0.25
    )

    first, second, weight = np.zeros((3, 1)), np.zeros((3, 1)), before
    for _ in range(3):
        first, second = 0.9 * first + 0.1 * _GRADIENT, 0.999 * second + 0.001 * _GRADIENT**2
        step = first / (np.sqrt(second) + 1e-6) + 0.01 * weight
        assert np.linalg.norm(weight) > 0.25
        weight = weight - 0.1 * 0.25 / np.linalg.norm(step) * step
    np.testing.assert_allclose(after, weight, atol=2e-6)


def test_an_overflow_is_an_error_where_floating_point_is_checked() -> None:
    x = paddle.static.data("x", [2])
    out = paddle.log(x)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    strategy.set_options({"enable_floating_point_checks": True})
    model = api.compile(paddle.static.default_main_program(), ["x"], [out], strategy=strategy)

    np.testing.assert_array_equal(model.run({"x": np.float32([1, 1])})[0], [0, 0])
    with pytest.raises(ArithmeticError, match=r"aten\.log"):
        model.run({"x": np.float32([1, 0])})


def test_half_is_rounded_at_random_where_the_strategy_says_so() -> None:
    x, y = (paddle.static.data(name, [8000], "float16") for name in "xy")
    out = paddle.add(x, y)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    strategy.set_options({"enable_stochastic_rounding": True, "random_seed": 3})
    program = paddle.static.default_main_program()
    model = api.compile(program, ["x", "y"], [out], strategy=strategy)

    (found,) = model.run({"x": np.ones(8000, np.float16), "y": np.full(8000, 1e-4, np.float16)})

    # float16 has nothing between 1 and 1 + 2**-10; the nearest to each sum would be 1.
    assert sorted(set(found.astype(np.float64))) == [1, 1 + 2**-10]
    assert found.astype(np.float64).mean() == pytest.approx(1.0001, abs=2e-5)


@pytest.mark.parametrize(("name", "word"), [("accl1_type", "DOUBLE"), ("weight_decay_mode", "l1")])
def test_words_nobody_knows_are_refused(name: str, word: str) -> None:
    with pytest.raises(OptionError, match=rf"{name}.*{word}"):
        api.IpuStrategy().set_options({name: word})
