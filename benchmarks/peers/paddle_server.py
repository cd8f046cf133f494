"""Run by an interpreter that has Paddle, and nothing of this project: train LeNet on order.

    paddle_server.py START.npz                a number of steps on each line of stdin

After each order one line of JSON tells the last loss and the CPU seconds of this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def built(data: str) -> Callable[[], Any]:
    """A function that runs one step and returns its loss as an array."""
    import numpy as np
    import paddle

    start = np.load(data)
    paddle.enable_static()
    x = paddle.static.data("x", start["x"].shape, "float32")
    labels = paddle.static.data("labels", start["labels"].shape, "int64")
    model = paddle.vision.models.LeNet()
    loss = paddle.nn.functional.cross_entropy(model(x), labels)
    paddle.optimizer.SGD(float(start["lr"])).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    scope = paddle.static.global_scope()
    for name, parameter in model.named_parameters():
        value = np.ascontiguousarray(start[name])
        scope.find_var(parameter.name).get_tensor().set(value, paddle.CPUPlace())
    program = paddle.static.default_main_program()
    feed = {"x": start["x"], "labels": start["labels"]}
    return lambda: executor.run(program, feed=feed, fetch_list=[loss])[0]


def main() -> None:
    """Obey until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Paddle prints must not look like an answer
    step = built(sys.argv[1])
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        result = None
        for _ in range(int(line)):
            result = step()
        loss = None if result is None else float(result.ravel()[0])
        print(json.dumps({"loss": loss, "cpu": time.process_time()}), file=answers)


if __name__ == "__main__":
    main()
