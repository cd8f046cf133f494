"""`torch.ops.poptorch.*`: the few operators that clients call there directly."""

from __future__ import annotations

import torch

from pantile.errors import OperandValueError
from pantile.ops.context import current

_DTYPES = {
    "FLOAT": torch.float32,
    "FLOAT16": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "DOUBLE": torch.float64,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def push_name_scope(name: str) -> None:
    """Prefix the names of the ops that follow."""
    recorder = current()
    if recorder is not None:
        recorder.push_scope("name", name)


def pop_name_scope() -> None:
    """End the latest `push_name_scope`."""
    recorder = current()
    if recorder is not None:
        recorder.pop_scope("name")


def internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Cast to a type by its PopART name, such as `FLOAT16`."""
    if dtype not in _DTYPES:
        raise OperandValueError(
            f"internal_cast: dtype={dtype!r} is not a type name",
            fix=f"use one of {', '.join(_DTYPES)}",
        )
    return tensor.to(_DTYPES[dtype])


def install() -> None:
    """Make the functions reachable as `torch.ops.poptorch.<name>`."""
    for function in (push_name_scope, pop_name_scope, internal_cast):
        setattr(torch.ops.poptorch, function.__name__, function)
