"""A row of a ring that is being filled: batches are collated straight into shared memory.

    samples ── torch.stack(out=…) ──► │ head │ tensor 0 │ tensor 1 │      no copy in between

Memory of a row is used again and again, while a new tensor of megabytes is new pages every time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

ALIGNMENT = 64
HEAD = 1024  # room for the description of an item; one that needs more is copied


def aligned(size: int) -> int:
    """The size, rounded up to where the next tensor may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def tensor_at(
    memory: mmap.mmap | memoryview,
    offset: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """A tensor whose memory is that at `offset`."""
    count = prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
    return raw.view(shape) if stride is None else raw.as_strided(shape, stride)


class Draft:
    """The row and what is in it so far."""

    def __init__(self, memory: mmap.mmap, row: int, offset: int, capacity: int) -> None:
        self.row = row
        self.offset = offset
        self.capacity = capacity
        self.used = 0
        self._memory = memory
        self._start = torch.frombuffer(
            memory, dtype=torch.uint8, count=1, offset=offset + HEAD
        ).data_ptr()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """A new tensor in the row; None if there is no room for it."""
        size = prod(shape) * dtype.itemsize
        if size == 0 or HEAD + self.used + size > self.capacity:
            return None
        place, self.used = self.used, self.used + aligned(size)
        return tensor_at(self._memory, self.offset + HEAD + place, dtype, shape)

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Where in the row, after the head, a tensor lies; None if it lies elsewhere."""
        place = tensor.data_ptr() - self._start
        return place if 0 <= place < self.used and tensor.is_contiguous() else None


def collate_into(draft: Draft | None, samples: Any) -> Any:
    """What `default_collate` returns, with its tensors in the draft where they fit."""
    if draft is None:
        return default_collate(samples)

    def stacked(batch: Any, *, collate_fn_map: Any = None) -> Any:
        target = _room_for(batch, draft)
        if target is None:
            return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
        with torch.no_grad():
            return torch.stack(batch, out=target)

    functions: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, torch.Tensor: stacked}
    return collate(samples, collate_fn_map=functions)


def _room_for(batch: Any, draft: Draft) -> torch.Tensor | None:
    first = batch[0]
    kind, dtype = type(first), first.dtype
    is_plain = kind is torch.Tensor and first.layout == torch.strided and first.is_contiguous()
    if not is_plain or first.device.type != "cpu" or first.is_quantized or first.is_nested:
        return None
    # Stacking tensors of several types promotes them: left to torch.
    if any(type(each) is not kind or each.dtype != dtype for each in batch):
        return None
    return draft.empty((len(batch), *first.shape), dtype)
