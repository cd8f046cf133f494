"""A call of an operator as plain data, for the header of a cache entry; see `lowering/calls.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.lowering.kernels.outside import OutsideCall
from pantile.lowering.kernels.refused import Refused


def described(call: OutsideCall) -> Mapping[str, Any]:
    """The operator, its arguments but for tensors, and the strides of the results in use."""
    node = call.node
    known = node.meta["val"]
    results = [
        [
            place or 0,
            [int(stride) for stride in (known if place is None else known[place]).stride()],
        ]
        for place in call.places
    ]
    return {**described_node(node), "results": results}


def described_node(node: fx.Node) -> Mapping[str, Any]:
    """The operator and its arguments; Refused if these are no plain data."""
    assert isinstance(node.target, OpOverload)
    schema = node.target._schema
    named = zip((argument.name for argument in schema.arguments), node.args, strict=False)
    arguments = [[name, *_encoded(value)] for name, value in (*named, *node.kwargs.items())]
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    return {"operator": str(node.target), "arguments": arguments, "positional": positional}


def _encoded(value: Any) -> tuple[str, Any]:
    """What an argument is, and its value unless it is a tensor."""
    if value is None:
        return "none", None
    if isinstance(value, fx.Node):
        return "tensor", None
    if isinstance(value, (list, tuple)) and any(isinstance(item, fx.Node) for item in value):
        if not all(item is None or isinstance(item, fx.Node) for item in value):
            raise Refused("a list of tensors and numbers")
        return "optional tensors", [item is not None for item in value]
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return "torch", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "device", value.type
    return "plain", _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"the number {value} as an argument")
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise Refused(f"an argument of {type(value).__name__}")
