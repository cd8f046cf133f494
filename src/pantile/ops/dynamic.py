"""Slices whose start is known only when the program runs. Both ops have gradients.

    dynamic_slice(t, 0, start, 4, 2)        t[start : start + 4 : 2]
    dynamic_update(t, s, 0, start, 4)       t with t[start : start + 4] replaced by s

A slice that reaches past the end goes on at the beginning, as on the device.
"""

from __future__ import annotations

from typing import Any

import torch

from pantile.errors import OperandError
from pantile.ops.context import current, strict_mode
from pantile.ops.operands import refuse_in_strict_training, require_int, require_tensor

_START_TYPES = (torch.int16, torch.int32, torch.int64)
_DEVICE_TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """`tensor[start:start+size:step]` along `dim`; `start` is a tensor with one integer.

    Strict mode wants `size` to divide the dimension, and no training.
    """
    op = "dynamic_slice"
    require_tensor(op, "tensor", tensor)
    length = _check_slice(op, tensor, dim, start=start, size=size)
    if require_int(op, "step", step) < 1:
        raise OperandError(f"{op}: step={step} must be at least 1", fix="pass a positive step")
    if strict_mode():
        refuse_in_strict_training(op)
        if length % size:
            raise OperandError(
                f"{op}: The size of the slice ({size}) must be a factor of the slicing dimension "
                f"({length}).",
                fix="pad the tensor, or turn strict mode off",
            )
        if current() is None:
            return tensor.narrow(dim, int(start), min(size, length - int(start)))[
                (slice(None),) * (dim % tensor.dim()) + (slice(None, None, step),)
            ]
    return tensor.index_select(dim, _positions(start, length, torch.arange(0, size, step)))


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A copy of `input` with `size` entries along `dim`, from `start` on, replaced by `src`."""
    op = "dynamic_update"
    require_tensor(op, "input", input)
    require_tensor(op, "src", src)
    if input.dim() != src.dim():
        raise OperandError(
            f"{op}: input and src tensors must have same dimensionality. ({input.dim()}) vs "
            f"({src.dim()})",
            fix="reshape src, for example with src.unsqueeze(0)",
        )
    types = _types(input, src)
    if types[0] != types[1]:
        raise OperandError(
            f"{op}: input and src tensor must have same dtype. ({types[0]} vs {types[1]})",
            fix="cast src with src.to(input.dtype)",
        )
    src = src.to(input.dtype)
    length = _check_slice(op, input, dim, start=start, size=size)
    expected = list(input.shape)
    expected[dim] = size
    if list(src.shape) != expected:
        raise OperandError(
            f"{op}: src has shape {list(src.shape)}, the slice it replaces has {expected}",
            fix=f"pass a src of shape {expected}",
        )
    return input.index_copy(dim, _positions(start, length, torch.arange(size)), src)


def _types(*tensors: torch.Tensor) -> list[torch.dtype]:
    """The types of tensors; in strict mode, those that a device would give them."""
    if not strict_mode():
        return [tensor.dtype for tensor in tensors]
    return [_DEVICE_TYPES.get(tensor.dtype, tensor.dtype) for tensor in tensors]


def _positions(start: torch.Tensor, length: int, offsets: torch.Tensor) -> torch.Tensor:
    return (start.reshape(()).long() + offsets.to(start.device)) % length


def _check_slice(op: str, tensor: torch.Tensor, dim: Any, *, start: Any, size: Any) -> int:
    """The length of the dimension that is sliced, after checking the slice against it."""
    require_tensor(op, "start", start)
    if start.dtype not in _START_TYPES or start.numel() != 1:
        raise OperandError(
            f"{op}: start must hold one integer, it has shape {list(start.shape)} and type "
            f"{start.dtype}",
            fix="pass a tensor with one element of type int16, int32 or int64",
        )
    if not -tensor.dim() <= require_int(op, "dim", dim) < tensor.dim():
        raise OperandError(
            f"{op}: dim={dim} does not exist in a tensor of {tensor.dim()} dimensions",
            fix=f"pass a dim between {-tensor.dim()} and {tensor.dim() - 1}",
        )
    length = int(tensor.shape[dim])
    if require_int(op, "size", size) == 0:
        raise OperandError(
            f"{op}: The start and end of a slice must be different, but size=0",
            fix="pass a positive size",
        )
    if size < 0:
        raise OperandError(
            f"{op}: Taking a slice of a tensor with the end less than the start is not supported. "
            f"The size is {size}",
            fix="pass a positive size",
        )
    if size > length:
        raise OperandError(
            f"{op}: size={size} must be a factor of, or less than, dimension {dim} of {length}",
            fix=f"pass a size of at most {length}",
        )
    return length
