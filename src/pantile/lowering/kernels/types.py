"""Types of numbers, as C++ spells them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.refused import Refused

CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "u8",
    torch.bool: "bool",
}

MOST_ELEMENTS = 2**31 - 1
"""Indices are of 32 bits."""


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's value."""
    return tuple(int(size) for size in node.meta["val"].shape)


def dtype_of(node: fx.Node) -> torch.dtype:
    """The type of a node's value."""
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def cpp(dtype: torch.dtype) -> str:
    """The C++ type of a dtype."""
    if dtype not in CPP:
        raise Refused(f"numbers of {dtype}")
    return CPP[dtype]


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number as C++ text of a type."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _floating(float(value), "f" if dtype is torch.float32 else "")
    if isinstance(value, float) and not value.is_integer():
        raise Refused(f"the number {value} as {dtype}")
    value = int(value)
    if value == -(2**63):
        return "(-9223372036854775807L - 1)"
    return f"{value}L" if dtype is torch.int64 else f"({cpp(dtype)}){value}"


def _floating(value: float, suffix: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    if suffix:
        value = float(torch.tensor(value, dtype=torch.float32))
        if math.isinf(value):
            return _floating(value, suffix)
    text = repr(value)
    return f"({text}{suffix})" if value < 0 else f"{text}{suffix}"
