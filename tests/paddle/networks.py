"""Programs that several tests build, and their training by Paddle's own executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

Feeds = list[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Built:
    """A static training program and its startup program."""

    main: Any
    startup: Any
    loss: Any
    prediction: Any

    def start(self) -> Any:
        """Run the startup program in a new scope."""
        scope = paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            paddle.static.Executor(paddle.CPUPlace()).run(self.startup)
        return scope


def lenet(x: Any) -> Any:
    """The digits network of the Paddle documentation, with batch norm."""
    nn, functional = paddle.static.nn, paddle.nn.functional
    h = functional.max_pool2d(nn.conv2d(x, 6, 3, padding=1, act="relu"), 2, 2)
    h = nn.batch_norm(h)
    h = functional.max_pool2d(nn.conv2d(h, 16, 5, act="relu"), 2, 2)
    return nn.fc(nn.fc(paddle.flatten(h, 1), 32), 10)


def dense(x: Any) -> Any:
    """Two layers on flat images."""
    h = paddle.static.nn.fc(paddle.flatten(x, 1), 16, activation="tanh")
    return paddle.static.nn.fc(h, 10)


def classifier(
    minimise: Callable[[Any], Any] | None, *, network: Any = lenet, batch: int = -1, size: int = 28
) -> Built:
    """Images to classes, with the update that `minimise(loss)` appends."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [batch, 1, size, size])
        y = paddle.static.data("y", [batch, 1], "int64")
        prediction = network(x)
        losses = paddle.nn.functional.softmax_with_cross_entropy(prediction, y)
        loss = paddle.mean(losses)
        if minimise is not None:
            minimise(loss)
    return Built(main, startup, loss, prediction)


def batches(count: int, rows: int, size: int = 28) -> Feeds:
    """Random images and labels."""
    rng = np.random.default_rng(11)
    return [
        {
            "x": rng.standard_normal((rows, 1, size, size)).astype("float32"),
            "y": rng.integers(0, 10, (rows, 1)),
        }
        for _ in range(count)
    ]


def joined(feeds: Feeds) -> dict[str, np.ndarray]:
    """Several feeds as one, joined on dim 0."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def values_in(scope: Any, names: Any) -> dict[str, np.ndarray]:
    """Copies of the variables of a scope."""
    return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def persistables(built: Built) -> list[str]:
    """The names of weights and optimizer state."""
    kept = [v for v in built.main.list_vars() if v.persistable and "learning_rate" not in v.name]
    return [v.name for v in kept]


def train_with_paddle(built: Built, scope: Any, feeds: Feeds, scheduler: Any = None) -> list[float]:
    """Train with Paddle's CPU executor; the loss of each batch."""
    executor, losses = paddle.static.Executor(paddle.CPUPlace()), []
    with paddle.static.scope_guard(scope):
        for feed in feeds:
            (loss,) = executor.run(built.main, feed=feed, fetch_list=[built.loss])
            losses.append(float(loss))
            if scheduler is not None:
                scheduler.step()
    return losses


def assert_close(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], tolerance: float
) -> None:
    """All variables agree."""
    for name, want in theirs.items():
        np.testing.assert_allclose(ours[name], want, rtol=tolerance, atol=tolerance, err_msg=name)
