"""One item as bytes: a short description, then its tensors, each on a 64-byte boundary.

    │ sizes │ tensors: dtype, shape, stride, place │ structure │ pad │ tensor 0 │ pad │ tensor 1 │

The structure (everything that is not a tensor) is serialised by multiprocessing's own pickler,
which also carried the dataset to the worker: only it knows the user's types. Tensors never are.
A description like the one before is neither written nor read again.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from pantile.data.draft import HEAD, Draft, aligned, tensor_at
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

_SIZES = struct.Struct("<III")  # of the table, of the structure, and where tensors begin
_Table = list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]]


@dataclass(frozen=True)
class Packed:
    """An item ready to be written."""

    head: bytes
    tensors: tuple[torch.Tensor, ...]
    places: tuple[int, ...]
    size: int
    draft: Draft | None = None  # the row some of the tensors lie in already

    def write(self, memory: mmap.mmap, offset: int, *, into_draft: bool = False) -> None:
        """Copy the item to `offset`; if that is its draft, what is missing there."""
        memory[offset : offset + len(self.head)] = self.head
        for tensor, place in zip(self.tensors, self.places, strict=True):
            is_there = into_draft and self.draft and self.draft.place_of(tensor) is not None
            if tensor.numel() and not is_there:
                stride = _dense_stride(tensor)
                target = tensor_at(
                    memory, offset + place, tensor.dtype, tuple(tensor.shape), stride
                )
                target.copy_(tensor)


class Packer:
    """Lays items out, one after the other. With `flat_only`, it refuses what PopTorch would."""

    def __init__(self, *, flat_only: bool = False) -> None:
        self._flat_only = flat_only
        self._last: tuple[_Table, Structure, bytes] | None = None

    def pack(self, item: Any, draft: Draft | None = None) -> Packed:
        """Lay an item out, leaving what lies in the draft where it is."""
        tensors, structure = flatten(item)
        if self._flat_only:
            _check_flat(structure, item)
        tensors = [_dense(tensor) for tensor in tensors]
        places, end = _places(tensors, draft)
        head, start = self._head(tensors, places, structure)
        if draft is not None and start != HEAD:
            draft = None
            places, end = _places(tensors, None)
            head, start = self._head(tensors, places, structure)
        return Packed(
            head, tuple(tensors), tuple(start + place for place in places), start + end, draft
        )

    def _head(
        self, tensors: Sequence[torch.Tensor], places: Sequence[int], structure: Structure
    ) -> tuple[bytes, int]:
        """The description, and where tensors begin after it."""
        table: _Table = [
            (t.dtype, tuple(t.shape), _dense_stride(t), place)
            for t, place in zip(tensors, places, strict=True)
        ]
        if self._last is None or self._last[0] != table or self._last[1] != structure:
            rows = [[str(dtype)[6:], *rest] for dtype, *rest in table]
            text = json.dumps(rows).encode()
            form = bytes(ForkingPickler.dumps(_without_data(structure)))
            size = _SIZES.size + len(text) + len(form)
            start = max(HEAD, aligned(size))
            head = _SIZES.pack(len(text), len(form), start) + text + form
            if not _is_plain(structure):
                return head, start
            self._last = (table, structure, head)
        head = self._last[2]
        return head, max(HEAD, aligned(len(head)))


class Unpacker:
    """Builds items again, one after the other."""

    def __init__(self) -> None:
        self._texts: tuple[bytes, _Table] = (b"", [])
        self._forms: tuple[bytes, Structure] | None = None

    def unpack(self, memory: mmap.mmap | memoryview, offset: int, *, copy: bool) -> Any:
        """The item at `offset`; its tensors lie in `memory` unless they are copied."""
        text_size, form_size, start = _SIZES.unpack_from(memory, offset)
        at = offset + _SIZES.size
        table = self._table(bytes(memory[at : at + text_size]))
        structure = self._structure(bytes(memory[at + text_size : at + text_size + form_size]))
        tensors = []
        for dtype, shape, stride, place in table:
            tensor = tensor_at(memory, offset + start + place, dtype, shape, stride)
            tensors.append(tensor.clone() if copy else tensor)
        return unflatten(structure, tensors)

    def _table(self, text: bytes) -> _Table:
        if text != self._texts[0]:
            rows = json.loads(text)
            table = [
                (getattr(torch, name), tuple(shape), tuple(stride), place)
                for name, shape, stride, place in rows
            ]
            self._texts = (text, table)
        return self._texts[1]

    def _structure(self, form: bytes) -> Structure:
        if self._forms is not None and self._forms[0] == form:
            return self._forms[1]
        structure: Structure = ForkingPickler.loads(form)
        # A value of the user's must be a new one in every item.
        self._forms = (form, structure) if _is_plain(structure) else None
        return structure


def _places(tensors: Sequence[torch.Tensor], draft: Draft | None) -> tuple[list[int], int]:
    """Where each tensor lies after the head, and where the last of them ends."""
    places = []
    end = 0 if draft is None else draft.used
    for tensor in tensors:
        there = None if draft is None else draft.place_of(tensor)
        if there is None:
            there, end = end, end + aligned(tensor.numel() * tensor.element_size())
        places.append(there)
    return places, end


def _is_plain(structure: Structure) -> bool:
    """Whether it is all tensors, in containers: nothing of the user's is in it."""
    match structure:
        case Leaf():
            return True
        case Container(kind, _, children) if kind in (tuple, list, dict):
            return all(_is_plain(child) for child in children)
    return False


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
