"""Where the weights of a program live between compilations: named host arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


class Scope(Protocol):
    """What a session needs of a scope."""

    def find(self, name: str) -> torch.Tensor | None:
        """A copy of a variable's value; None if it has none."""

    def store(self, name: str, value: torch.Tensor) -> None:
        """Give a variable a value."""


class TensorScope:
    """A scope of tensors, for programs that were read from files."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)

    def find(self, name: str) -> torch.Tensor | None:
        """A copy of a variable's value; None if it has none."""
        found = self.tensors.get(name)
        return None if found is None else found.clone()

    def store(self, name: str, value: torch.Tensor) -> None:
        """Give a variable a value."""
        self.tensors[name] = value.detach().clone()


def as_tensor(array: Array, dtype: torch.dtype | None) -> torch.Tensor:
    """A NumPy array as a tensor of the declared type; Paddle keeps bfloat16 as 16-bit integers."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if not array.flags.writeable:
        array = array.copy()
    if dtype is torch.bfloat16 and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    tensor = torch.from_numpy(array)
    return tensor if dtype is None or tensor.dtype is dtype else tensor.to(dtype)


def as_array(tensor: torch.Tensor) -> Array:
    """A tensor as a NumPy array."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: Array = tensor.numpy()
    return array
