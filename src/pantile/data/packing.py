"""One item as bytes: a short description, then its tensors, each on a 64-byte boundary.

    │ sizes │ tensors: dtype, shape, stride, place │ structure │ pad │ tensor 0 │ pad │ tensor 1 │

The structure (everything that is not a tensor) is serialised by multiprocessing's own pickler,
which also carried the dataset to the worker: only it knows the user's types. Tensors never are.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from pantile.errors import DataArgumentError, DataError
from pantile.program.structure import (
    Constant,
    Container,
    Custom,
    Leaf,
    Structure,
    find_parser,
    flatten,
    unflatten,
)

_ALIGNMENT = 64
_SIZES = struct.Struct("<II")


@dataclass(frozen=True)
class Packed:
    """An item ready to be written."""

    head: bytes
    tensors: tuple[torch.Tensor, ...]
    places: tuple[int, ...]
    size: int

    def write(self, memory: mmap.mmap, offset: int) -> None:
        """Copy the item to `offset`."""
        memory[offset : offset + len(self.head)] = self.head
        for tensor, place in zip(self.tensors, self.places, strict=True):
            if tensor.numel():
                stride = _dense_stride(tensor)
                target = _tensor_at(
                    memory, offset + place, tensor.dtype, list(tensor.shape), list(stride)
                )
                target.copy_(tensor)


def pack(item: Any, *, flat_only: bool = False) -> Packed:
    """Lay an item out. With `flat_only`, refuse what PopTorch would."""
    tensors, structure = flatten(item)
    if flat_only:
        _check_flat(structure, item)
    tensors = [_dense(tensor) for tensor in tensors]
    places, end = [], 0
    for tensor in tensors:
        places.append(end)
        end += _aligned(tensor.numel() * tensor.element_size())
    table = json.dumps(
        [
            [str(t.dtype)[6:], list(t.shape), list(_dense_stride(t)), place]
            for t, place in zip(tensors, places, strict=True)
        ]
    ).encode()
    form = bytes(ForkingPickler.dumps(_without_data(structure)))
    head = _SIZES.pack(len(table), len(form)) + table + form
    start = _aligned(len(head))
    return Packed(head, tuple(tensors), tuple(start + place for place in places), start + end)


def unpack(memory: mmap.mmap, offset: int, *, copy: bool) -> Any:
    """The item at `offset`; its tensors lie in `memory` unless they are copied."""
    table_size, form_size = _SIZES.unpack_from(memory, offset)
    at = offset + _SIZES.size
    table = json.loads(memory[at : at + table_size])
    form = memory[at + table_size : at + table_size + form_size]
    start = offset + _aligned(_SIZES.size + table_size + form_size)
    tensors = []
    for name, shape, stride, place in table:
        tensor = _tensor_at(memory, start + place, getattr(torch, name), shape, stride)
        tensors.append(tensor.clone() if copy else tensor)
    return unflatten(ForkingPickler.loads(form), tensors)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _tensor_at(
    memory: mmap.mmap, offset: int, dtype: torch.dtype, shape: list[int], stride: list[int]
) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset)
    return raw.view(dtype).as_strided(shape, stride)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        raise DataError(
            f"an asynchronous loader cannot hand over a {kind} tensor",
            fix="yield dense tensors, for example with x.to_dense(), or use DataLoaderMode.Sync",
        )
    return tensor.detach().cpu()


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy without gaps that keeps the order of dimensions (channels last)."""
    if tensor.is_contiguous():
        return tensor.stride()
    return torch.empty_like(tensor, device="meta").stride()


def _without_data(structure: Structure) -> Structure:
    """A structure that does not drag the tensors of custom types along."""
    match structure:
        case Custom(_, original, count):
            parser = find_parser(original)
            assert parser is not None  # flatten found it
            empty = [torch.empty(0)] * count
            try:
                light = parser.reconstruct(original, iter(empty))
            except Exception:  # a type that checks its tensors: heavier to send, but right
                return structure
            return Custom(type(light), light, count)
        case Container(kind, context, children):
            return Container(kind, context, tuple(_without_data(child) for child in children))
    return structure


def _check_flat(structure: Structure, item: Any) -> None:
    """PopTorch's rule: a tensor, a flat list, tuple or dict of them, or a custom type."""
    match structure:
        case Leaf() | Custom():
            return
        case Container(kind, _, children) if kind in (tuple, list, dict):
            if all(isinstance(child, Leaf) for child in children):
                return
        case Constant():
            pass
    raise DataArgumentError(
        f"an item of type {type(item).__name__} is not a tensor, a flat list, tuple or dict of "
        "tensors, or a type with a registered parser",
        fix="flatten it, register a parser with poptorch.registerCustomArgParser, or turn strict "
        "mode off",
    )
