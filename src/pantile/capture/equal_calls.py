"""Shapes of equal calls, worked out once.

    add(p0: float32[256], …)   worked out by torch's rules for fake tensors, and kept
    add(p1: float32[256], …)   a new fake tensor of the same shape

An optimizer calls the same operators for parameter after parameter. To ask torch's rules each time
took half of the time in which an update was recorded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode

from pantile.capture.fake import fake_like
from pantile.program.calls import likeness


class EqualCalls:
    """What operators return on fake tensors of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Any, FakeTensor] = {}

    def result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns for arguments of which no real tensor decides the shape."""
        like = likeness((args, kwargs)) if _returns_new_tensor(func) else None
        if like is None:
            with self._mode:
                return func(*args, **kwargs)
        key = (func, like)
        if key in self._known:
            return self._another(self._known[key])
        with self._mode:
            return self._kept(key, func(*args, **kwargs))

    def like(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """A fake tensor like a real one, which an error calls `what`."""
        lazy = (tensor.is_conj(), tensor.is_neg())
        key = (tensor.layout, tensor.device, lazy, likeness(tensor))
        if key in self._known:
            return self._another(self._known[key])
        fake: torch.Tensor = self._kept(key, fake_like(self._mode, tensor, what))
        return fake

    def _kept(self, key: Any, result: Any) -> Any:
        if type(result) is FakeTensor and _is_plain(result):
            self._known[key] = result
        return result

    def _another(self, fake: FakeTensor) -> FakeTensor:
        empty = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
        return FakeTensor(self._mode, empty, fake.fake_device)


@cache
def _returns_new_tensor(func: Any) -> bool:
    """Is the result of an operator one tensor, with memory of its own?"""
    if not isinstance(func, OpOverload) or func._schema.is_mutable:
        return False
    returns = func._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None


def _is_plain(fake: FakeTensor) -> bool:
    """Do shape, strides and dtype say all about a fake tensor?"""
    return (
        fake.layout is torch.strided
        and not fake.storage_offset()
        and not (fake.is_conj() or fake.is_neg() or fake.requires_grad)
        and fake.constant is None
    )
