"""What the custom operators of a strategy compute.

    add_custom_op(paddle_op="my_relu", popart_op="Relu", domain="ai.onnx")

    a function given with `register_operator`            wins
    an operator of PopART's own (domain ai.…)            its translation, if it is known
    an operator of the user's (any other domain)         the CPU kernel of its Paddle half

Only the user knows what the PopART half of an operator computed; the Paddle half, which Paddle
runs on the CPU, is taken to compute the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pantile.paddle.call import Table, Translation
from pantile.paddle.operators import OPERATORS
from pantile.paddle.paddle_kernel import run_kernel
from pantile.paddle.registry import translations

_OF_POPART: Mapping[str, str] = {
    "ai.graphcore.CheckpointOutput": "checkpointoutput",
    "ai.graphcore.Detach": "detach",
    "ai.graphcore.Gelu": "gelu",
    "ai.graphcore.IdentityLoss": "identity_loss",
    "ai.graphcore.Nll": "custom_nll_loss",
    "ai.onnx.Abs": "abs",
    "ai.onnx.Ceil": "ceil",
    "ai.onnx.Cos": "cos",
    "ai.onnx.Erf": "erf",
    "ai.onnx.Exp": "exp",
    "ai.onnx.Floor": "floor",
    "ai.onnx.Identity": "identity",
    "ai.onnx.Log": "log",
    "ai.onnx.Reciprocal": "reciprocal",
    "ai.onnx.Relu": "relu",
    "ai.onnx.Sigmoid": "sigmoid",
    "ai.onnx.Sign": "sign",
    "ai.onnx.Sin": "sin",
    "ai.onnx.Softsign": "softsign",
    "ai.onnx.Sqrt": "sqrt",
    "ai.onnx.Tan": "tan",
    "ai.onnx.Tanh": "tanh",
}


def with_custom(operators: Iterable[Mapping[str, Any]]) -> Table:
    """Every operator that can be translated, the custom ones of a strategy among them."""
    known = translations()
    made: dict[str, Translation] = {}
    for entry in operators:
        name, domain = str(entry["paddle_op"]), str(entry.get("domain", "custom.ops"))
        own = _OF_POPART.get(f"{domain}.{entry.get('popart_op') or name}")
        if own is not None:
            made[name] = OPERATORS[own]
        elif not domain.startswith("ai."):
            made[name] = run_kernel
    return MappingProxyType({**made, **known})
