"""Types of numbers, as C++ spells them.

            computed as     stored as
float32     float           float
bfloat16    float           bf16          rounded after every operator, as eager does it
float16     float           fp16
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.sharing import opened

CPP = {
    torch.float32: "float",
    torch.bfloat16: "float",
    torch.float16: "float",
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "u8",
    torch.bool: "bool",
}

HALVES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Types of 16 bits: numbers are kept in them, and never computed with (templates/halves.h)."""

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
    """The C++ type that numbers of a dtype are computed in."""
    if dtype not in CPP:
        raise Refused(f"numbers of {dtype}")
    return CPP[dtype]


def stored(dtype: torch.dtype) -> str:
    """The C++ type that numbers of a dtype have in memory."""
    return HALVES.get(dtype) or cpp(dtype)


def computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype that an operator on a dtype computes in."""
    return torch.float32 if dtype in HALVES else dtype


def read(kind: str, element: str) -> str:
    """An element `pointer[index]` of a kind, as a number to compute with.

    A bool is read as the byte it is: gcc 12 makes no vectors of choices by bools that are loaded
    ("complicated access pattern"). A gradient of W3's dropouts in bfloat16 took 1.3 ms that way.
    """
    if kind == "bool":
        pointer, _, index = element.partition("[")
        return f"(((const u8*){pointer})[{index} != 0)"
    return f"{kind}_value({element}.bits)" if kind in HALVES.values() else element


def written_to(kind: str, element: str) -> str:
    """An element in memory of a kind, to be assigned to; a half takes its bits."""
    return f"{element}.bits" if kind in HALVES.values() else element


def in_float(*dtypes: torch.dtype) -> bool:
    """Are numbers of these types computed as floats?"""
    return all(computed(dtype) is torch.float32 for dtype in dtypes)


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number as C++ text of a type."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _floating(value_of(value, dtype), "f" if computed(dtype) is torch.float32 else "")
    if isinstance(value, float) and not value.is_integer():
        raise Refused(f"the number {value} as {dtype}")
    value = int(value)
    if value == -(2**63):
        return "(-9223372036854775807L - 1)"
    return f"{value}L" if dtype is torch.int64 else f"({cpp(dtype)}){value}"


def value_of(value: float, dtype: torch.dtype) -> float:
    """The number that a floating type makes of a number."""
    return float(torch.tensor(float(value), dtype=torch.float64).to(dtype))


def _floating(value: float, suffix: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    if not suffix or value.is_integer():  # 0 and 1 make other code than other numbers
        return f"({value!r}{suffix})" if value < 0 else f"{value!r}{suffix}"
    return f"({opened(f'{value!r}{suffix}')})" if value < 0 else opened(f"{value!r}{suffix}")
