"""Optimizer state kept in another type than its parameter.

    parameter   float16 ──►┐                          ┌──► float16   (rounded once)
    gradient    float16 ──►│ float32 ─ torch's rule ──┤
    exp_avg     float32 ──►┘                          └──► float32

The rule itself is torch's and sees one type only: the widest of those involved.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from pantile.errors import OptionTypeError

NARROW = (torch.float16, torch.bfloat16)


def check_accumulator_type(name: str, dtype: object) -> None:
    """Accept None, float16 and float32."""
    if dtype is None or dtype in (torch.float16, torch.float32):
        return
    raise OptionTypeError(
        f"{name}={dtype!r}: accumulators must be of type torch.float16 or torch.float32",
        fix=f"pass {name}=torch.float16, {name}=torch.float32, or leave it out",
    )


def state_dtype(param: Tensor, requested: torch.dtype | None) -> torch.dtype:
    """The type of a state tensor: as requested, else the parameter's own but at least float32."""
    if requested is not None:
        return requested
    return torch.float32 if param.dtype in NARROW else param.dtype


def zeros_for(param: Tensor, requested: torch.dtype | None) -> Tensor:
    """A state tensor of zeros for `param`, laid out as `param` is."""
    dtype = state_dtype(param, requested)
    return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)


def step_counter() -> Tensor:
    """A count of updates, kept as torch keeps it: a float on the CPU."""
    return torch.tensor(0.0, dtype=torch.float32)


def widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor in the widest type of them all; a tensor of that type is returned itself."""
    wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return [tensor.to(wide) for tensor in tensors]


def narrow_back(originals: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Round each result into the tensor it was widened from."""
    for original, result in zip(originals, results, strict=True):
        if original is not result:
            original.copy_(result)
