"""Which calls of operators are alike: same operator, same shapes, same numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def likeness(arguments: Any) -> Any:
    """Equal for arguments of calls that return equal shapes; None if that cannot be told.

    Nodes and tensors count by what they hold; 1, 1.0 and True are different numbers here.
    """
    try:
        key = _key(arguments)
        hash(key)
    except TypeError:
        return None
    return key


def _key(value: Any) -> Any:
    if isinstance(value, fx.Node):
        value = value.meta.get("val", value)
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.stride(), value.storage_offset(), value.dtype)
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(one)) for name, one in value.items())
    return (type(value), repr(value)) if isinstance(value, int | float) else value
