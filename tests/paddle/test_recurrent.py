"""`paddle.nn.LSTM`, `GRU` and `SimpleRNN` train as Paddle's own operator does."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import (
    assert_close,
    batches,
    classifier,
    persistables,
    train_with_paddle,
    values_in,
)

from pantile.errors import Error
from pantile.paddle import api

_LAYERS = {
    "lstm": lambda: paddle.nn.LSTM(8, 5, num_layers=2, direction="bidirect"),
    "gru": lambda: paddle.nn.GRU(8, 10, num_layers=2),
    "tanh": lambda: paddle.nn.SimpleRNN(8, 10),
    "relu": lambda: paddle.nn.SimpleRNN(8, 10, activation="relu"),
}


@pytest.mark.parametrize("name", list(_LAYERS))
def test_recurrent_layers_train_as_with_paddle(name: str) -> None:
    def network(x: Any) -> Any:
        out, state = _LAYERS[name]()(paddle.squeeze(x, [1]))
        last = state[0] if isinstance(state, tuple) else state
        return out[:, -1] + paddle.mean(last)

    built = classifier(paddle.optimizer.SGD(0.1).minimize, network=network, batch=4, size=8)
    feeds = batches(5, 4, size=8)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(micro_batch_size=4)

    model = api.compile(built.main, ["x", "y"], [built.loss], strategy=strategy, scope=ours)
    losses = [model.run(feed)[0].item() for feed in feeds]
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    names = [name for name in persistables(built) if values_in(theirs, [name])[name].size]
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)


def test_sequences_of_different_lengths_are_refused() -> None:
    x, lengths = paddle.static.data("x", [2, 3, 8]), paddle.static.data("n", [2], "int64")
    out, _ = paddle.nn.GRU(8, 4)(x, sequence_length=lengths)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    paddle.static.Executor(paddle.CPUPlace()).run(paddle.static.default_startup_program())

    with pytest.raises(Error, match="sequence_length"):
        api.compile(paddle.static.default_main_program(), ["x", "n"], [out], strategy=strategy).run(
            {"x": np.ones((2, 3, 8), "float32"), "n": np.array([2, 3])}
        )
