"""Types that no IPU has, asked for inside forward: strict mode makes float32 of them.

    x.double()                          x.float()
    torch.zeros(3, dtype=torch.float64) torch.zeros(3, dtype=torch.float32)
    x.to(torch.bfloat16)                x.to(torch.float32)

int64 is another matter, because kernels of a CPU want it for indices: `passes/narrow_integers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NARROWED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
"""What is made of a floating-point type that the device does not have."""

_METHODS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.double: torch.Tensor.float,
    torch.Tensor.bfloat16: torch.Tensor.float,
}


def narrowed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call with types of the device in place of those it does not have."""
    if any(_is_wide(value) for value in (*args, *kwargs.values())):
        args = tuple(_narrow(value) for value in args)
        kwargs = {name: _narrow(value) for name, value in kwargs.items()}
    return _METHODS.get(func, func), args, kwargs


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in NARROWED


def _narrow(value: Any) -> Any:
    return NARROWED[value] if _is_wide(value) else value
