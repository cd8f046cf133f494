"""Arguments and results of operators: the tensors among them, and which calls are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of nested tuples, lists and dicts; torch's trees are ten times as slow."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


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
