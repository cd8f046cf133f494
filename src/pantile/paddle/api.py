"""Paddle programs on software IPUs without changing Paddle.

from pantile.paddle import api

strategy = api.IpuStrategy()
strategy.set_graph_config(is_training=True, micro_batch_size=4)
with api.shard_guard(index=0, stage=0):
    ...                                             # operators built here are tagged
model = api.compile(program, ["x", "y"], [loss], strategy=strategy)
loss, = model.run({"x": x, "y": y})
model.weights_to_host()                             # now the scope has the weights

predictor = api.load_inference_model("model/mnist") # Paddle need not be installed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pantile.paddle.compiled import CompiledProgram, compile_program
from pantile.paddle.predictor import (
    Config,
    Predictor,
    create_predictor,
    load_inference_model,
)
from pantile.paddle.registry import register_operator, unregister_operator
from pantile.paddle.strategy import IpuStrategy
from pantile.paddle.wheel import require_paddle

__all__ = [
    "CompiledProgram",
    "Config",
    "IpuStrategy",
    "Predictor",
    "compile",
    "create_predictor",
    "load_inference_model",
    "register_operator",
    "shard_guard",
    "unregister_operator",
]


def compile(
    program: Any,
    feed_list: Any,
    fetch_list: Any,
    *,
    strategy: IpuStrategy | None = None,
    scope: Any = None,
) -> CompiledProgram:
    """Compile a static program; weights are taken from the scope now."""
    chosen = IpuStrategy() if strategy is None else strategy
    compiled = compile_program(program, feed_list, fetch_list, strategy=chosen, scope=scope)
    chosen.need_compile = False
    return compiled


@contextmanager
def shard_guard(index: int = -1, stage: int = -1) -> Iterator[None]:
    """Tag the operators that are built inside with an IPU and a pipeline stage.

    An inner guard wins over an outer one.
    """
    block = require_paddle().static.default_main_program().current_block()
    before = len(block.ops)
    try:
        yield
    finally:
        for op in block.ops[before:]:
            for name, number in (("ipu_index", index), ("ipu_stage", stage)):
                if number >= 0 and not op.has_attr(name):
                    op._set_attr(name, number)
