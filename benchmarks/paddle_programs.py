"""Paddle programs on Pantile beside Paddle's own CPU executor: the same programs, one process.

    .venv-paddle/bin/python -m benchmarks.paddle_programs [--rounds 30]

The engines take turns; a figure is the shortest CPU time of a round, on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PANTILE_PADDLE_INSTALL", "0")

import numpy as np
import paddle
import torch

from pantile.paddle import api

Run = Callable[[], Any]
_rng = np.random.default_rng(0)


def _start(startup: Any) -> tuple[Any, Any]:
    scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        executor.run(startup)
    return scope, executor


def _digits(rows: int) -> dict[str, np.ndarray]:
    images = _rng.standard_normal((rows, 1, 28, 28)).astype("float32")
    return {"x": images, "y": _rng.integers(0, 10, (rows, 1))}


def _lenet(rows: int, *, training: bool) -> tuple[Any, Any, Any, Any]:
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [rows, 1, 28, 28])
        y = paddle.static.data("y", [rows, 1], "int64")
        scores = paddle.vision.models.LeNet()(x)
        losses = paddle.nn.functional.softmax_with_cross_entropy(scores, y)
        loss = paddle.mean(losses)
        if training:
            paddle.optimizer.Adam(1e-3).minimize(loss)
    return main, startup, loss, scores


def _demo() -> tuple[Any, Any, Any]:
    main, startup = paddle.static.Program(), paddle.static.Program()
    nn, functional = paddle.static.nn, paddle.nn.functional
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [1, 1, 28, 28])
        y = paddle.static.data("y", [1, 1], "int64")
        h = functional.max_pool2d(nn.conv2d(x, 20, 5, act="relu"), 2, 2)
        h = functional.max_pool2d(nn.conv2d(nn.batch_norm(h), 1, 5, act="relu"), 2, 2)
        share = nn.fc(h, 10, activation="softmax")
        loss = paddle.mean(functional.cross_entropy(share, y, use_softmax=False))
        paddle.optimizer.Adam(1e-3).minimize(loss)
    return main, startup, loss


def _pair(
    main: Any, startup: Any, fetched: Any, feed: dict[str, np.ndarray], **options: Any
) -> tuple[Run, Run]:
    """A function that runs a step on Paddle, and one that runs it on Pantile."""
    scope, executor = _start(startup)
    steps = options.get("batches_per_step", 1)
    pieces = [{k: v[i::steps] for k, v in feed.items()} for i in range(steps)]

    def theirs() -> None:
        with paddle.static.scope_guard(scope):
            for piece in pieces:
                executor.run(main, feed=piece, fetch_list=[fetched])

    strategy = api.IpuStrategy()
    strategy.set_options({"micro_batch_size": len(pieces[0]["x"]), **options})
    own, _ = _start(startup)
    names = [name for name in feed if options.get("is_training", True) or name == "x"]
    model = api.compile(main, names, [fetched], strategy=strategy, scope=own)
    fed = {name: feed[name] for name in names}
    return theirs, lambda: model.run(fed)


def _shortest(runs: tuple[Run, ...], rounds: int) -> list[float]:
    best = [float("inf")] * len(runs)
    for run in runs:
        for _ in range(3):
            run()
    for _ in range(rounds):
        for place, run in enumerate(runs):
            begin = time.process_time()
            run()
            best[place] = min(best[place], time.process_time() - begin)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    paddle.enable_static()
    train_main, train_startup, loss, _ = _lenet(64, training=True)
    test_main, test_startup, _, scores = _lenet(64, training=False)
    demo_main, demo_startup, demo_loss = _demo()
    cases = {
        "LeNet, batch 64, training (Adam)": _pair(
            train_main, train_startup, loss, _digits(64), is_training=True
        ),
        "LeNet, batch 64, inference": _pair(
            test_main, test_startup, scores, _digits(64), is_training=False
        ),
        "documented demo, 64 micro-batches of 1 (Adam)": _pair(
            demo_main, demo_startup, demo_loss, _digits(64), is_training=True, batches_per_step=64
        ),
    }
    print(f"{'':46} {'Paddle':>10} {'Pantile':>10} {'ratio':>6}")
    for name, runs in cases.items():
        theirs, ours = _shortest(runs, rounds)
        print(f"{name:46} {theirs * 1e3:7.2f} ms {ours * 1e3:7.2f} ms {theirs / ours:6.2f}")


if __name__ == "__main__":
    main()
