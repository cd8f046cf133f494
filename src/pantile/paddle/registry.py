"""Operators that users bring: a name in Paddle, a function in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch

from pantile.errors import OperandTypeError
from pantile.paddle.call import Call, Table, Translation
from pantile.paddle.operators import OPERATORS

_registered: dict[str, Translation] = {}


def register_operator(name: str, function: Callable[..., Any]) -> None:
    """Let programs use the operator `name`.

    `function` is called with the operator's input tensors, in the order of its slots, and with its
    attributes as keyword arguments; it returns the outputs in the order of their slots. Gradients
    come from torch.
    """
    if not callable(function):
        raise OperandTypeError(
            f"register_operator: function={function!r} cannot be called",
            fix="pass a function of tensors",
        )

    def translate(call: Call) -> None:
        tensors = [t for slot in call.operator.inputs for t in call.tensors(slot)]
        hidden = ("op_", "ipu_", "with_quant_attr")
        attributes = {
            key: value
            for key, value in call.operator.attributes.items()
            if not key.startswith(hidden) and not key.startswith("__")
        }
        results = function(*tensors, **attributes)
        outputs: Sequence[torch.Tensor] = (
            (results,) if isinstance(results, torch.Tensor) else tuple(results)
        )
        for slot, value in zip(call.operator.outputs, outputs, strict=False):
            call.put(value, slot)

    _registered[name] = translate


def unregister_operator(name: str) -> None:
    """Forget an operator that was registered."""
    _registered.pop(name, None)


def translations() -> Table:
    """Every operator that can be translated now."""
    return MappingProxyType({**OPERATORS, **_registered})
