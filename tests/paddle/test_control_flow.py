"""Branches and loops that can be written out, against Paddle's own executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import Built, assert_close, train_with_paddle, values_in

from pantile.errors import CaptureError
from pantile.paddle import api

_rng = np.random.default_rng(2)


def _compiled(main: Any, feeds: list[str], fetches: list[Any], **how: Any) -> Any:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=how.pop("training", False))
    return api.compile(main, feeds, fetches, strategy=strategy, **how)


def _by_paddle(main: Any, feed: dict[str, np.ndarray], fetches: list[Any]) -> list[np.ndarray]:
    executor = paddle.static.Executor(paddle.CPUPlace())
    return list(executor.run(main, feed=feed, fetch_list=fetches))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_gives_what_the_condition_chooses(sign: int) -> None:
    x = paddle.static.data("x", [2, 3])
    taken = paddle.static.nn.cond(
        paddle.mean(x) > 0,
        lambda: paddle.static.nn.cond(x[0, 0] > 1, lambda: x * 3, lambda: x * 2),
        lambda: x - 1,
    )
    cases = paddle.static.nn.switch_case(
        paddle.cast(paddle.sum(x) > 1, "int32"), {0: lambda: x + 5, 1: lambda: x + 6}
    )
    main, fetches = paddle.static.default_main_program(), [taken, cases]
    feed = {"x": sign * np.float32([[1.5, 1, 1], [0.5, -0.5, 2]])}

    results = _compiled(main, ["x"], fetches).run(feed)

    for result, expected in zip(results, _by_paddle(main, feed, fetches), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_branch_that_overwrites_a_variable_leaves_it_when_it_is_not_taken() -> None:
    x = paddle.static.data("x", [3])
    held = x * 2
    paddle.static.nn.cond(paddle.sum(x) > 0, lambda: paddle.assign(x * 7, held) and None, None)
    out = held + 0
    main = paddle.static.default_main_program()
    model = _compiled(main, ["x"], [out])

    for fed in (np.float32([1, 2, 3]), np.float32([-1, -2, -3])):
        (expected,) = _by_paddle(main, {"x": fed}, [out])
        np.testing.assert_array_equal(model.run({"x": fed})[0], expected)


def test_a_loop_with_a_known_number_of_turns_trains_as_paddle_trains() -> None:
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [4, 3])
        weight = paddle.create_parameter([3, 3], "float32", name="weight")
        turn, last = paddle.full([1], 0, "int64"), paddle.full([1], 3, "int64")
        _, state = paddle.static.nn.while_loop(
            lambda turn, state: turn < last,
            lambda turn, state: [turn + 1, paddle.tanh(paddle.matmul(state, weight))],
            [turn, paddle.matmul(x, weight)],
        )
        positive = paddle.static.nn.cond(
            paddle.mean(state) > 0, lambda: state * 2, lambda: state * state
        )
        loss = paddle.mean(positive)
        paddle.optimizer.SGD(0.3).minimize(loss)
    built = Built(main, startup, loss, None)
    feeds = [{"x": _rng.standard_normal((4, 3)).astype("float32")} for _ in range(5)]
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)

    model = _compiled(main, ["x"], [loss], training=True, scope=ours)
    losses = [float(model.run(feed)[0][0]) for feed in feeds]

    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    model.weights_to_host()
    assert_close(values_in(ours, ["weight"]), values_in(theirs, ["weight"]), 1e-5)


def test_a_loop_that_waits_for_a_value_is_refused() -> None:
    x = paddle.static.data("x", [1])
    (out,) = paddle.static.nn.while_loop(lambda x: x < 100, lambda x: [x * 2], [x + 0])

    with pytest.raises(CaptureError, match="while"):
        _compiled(paddle.static.default_main_program(), ["x"], [out])


def test_a_loop_without_end_is_refused() -> None:
    x = paddle.static.data("x", [1])
    true = paddle.full([1], True, "bool")
    out, _ = paddle.static.nn.while_loop(
        lambda x, go: go, lambda x, go: [x * 2, paddle.logical_or(go, go)], [x + 0, true]
    )

    with pytest.raises(CaptureError, match="20000 operators"):
        _compiled(paddle.static.default_main_program(), ["x"], [out])
