"""Tensors as bytes, dtype, shape and strides, and back: bit for bit, in the same memory layout.

A section holds the memory a tensor spans, from its first to its last element: a transposed tensor
comes back transposed, an expanded one (stride 0) takes no more room than what it expands, and the
gaps of a sliced one are zeros. Packing copies: the tensors may change at once afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pantile.errors import DamagedFile, StoreError

MAX_DIMS = 64
_MAX_SIZE = 1 << 62

#: Name -> dtype, of every dtype torch has but the quantised ones (their scale is elsewhere).
DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
    if not str(dtype).startswith(("torch.qint", "torch.quint"))
}

#: What elements of a width are copied as: every dtype can be viewed so, not every one copied.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def pack_tensors(
    tensors: Mapping[str, Tensor], *, prefix: str = "tensor"
) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """A JSON header and the sections for a Container. Sections are called `prefix`:0, 1, …"""
    records: dict[str, Any] = {}
    sections: dict[str, memoryview] = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        plain = _plain(name, tensor)
        section = f"{prefix}:{number}"
        records[name] = {
            "dtype": str(plain.dtype).removeprefix("torch."),
            "shape": list(plain.shape),
            "stride": list(plain.stride()),
            "section": section,
        }
        sections[section] = _span_bytes(plain)
    return records, sections


def unpack_tensors(
    header: Mapping[str, Any], sections: Mapping[str, memoryview], *, source: str = "container"
) -> dict[str, Tensor]:
    """The tensors, each with memory of its own; `source` is what errors call the file."""
    return {name: _restored(name, record, sections, source) for name, record in header.items()}


def _plain(name: str, tensor: Tensor) -> Tensor:
    """The tensor without autograd and lazy conjugation, if its values are bytes in this memory."""
    kind = type(tensor)
    if not isinstance(tensor, Tensor) or kind not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        what = f"a {kind.__name__}"
    elif tensor.layout != torch.strided:
        what = f"a tensor of layout {tensor.layout}"
    elif tensor.device.type != "cpu":
        what = f"on device {tensor.device}"
    elif str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        what = f"of dtype {tensor.dtype}"
    else:
        return tensor.detach().resolve_conj().resolve_neg()
    raise StoreError(
        f"tensor {name!r} cannot be stored: it is {what}",
        fix="store a dense CPU tensor: x.to('cpu'), x.to_dense() or x.dequantize()",
    )


def _span_bytes(plain: Tensor) -> memoryview:
    carrier = plain.view(_CARRIERS[plain.element_size()])
    shape, stride = plain.shape, plain.stride()
    span = torch.zeros(_span(shape, stride), dtype=carrier.dtype)
    if len(span):
        # One element of each expanded dimension: copy_ refuses to write the same memory twice.
        once = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]
        offset = carrier.storage_offset()
        span.as_strided(once, stride).copy_(carrier.as_strided(once, stride, offset))
    return span.view(torch.uint8).numpy().data.toreadonly()


def _span(shape: torch.Size | list[int], stride: tuple[int, ...] | list[int]) -> int:
    """How many elements of memory lie between the first and the last, both counted."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _restored(name: str, record: Any, sections: Mapping[str, memoryview], source: str) -> Tensor:
    dtype, shape, stride, data = _checked(name, record, sections, source)
    memory = torch.empty(len(data), dtype=torch.uint8)
    memory.numpy().data[:] = data
    if dtype == torch.bool and len(data) and int(memory.max()) > 1:
        raise _damaged(source, name, "it has booleans that are neither 0 nor 1")
    return memory.view(dtype).as_strided(shape, stride)


def _checked(
    name: str, record: Any, sections: Mapping[str, memoryview], source: str
) -> tuple[torch.dtype, list[int], list[int], memoryview]:
    """The fields of a record, which must fit each other and the length of the section."""
    match record:
        case {"dtype": str(kind), "shape": [*shape], "stride": [*stride], "section": str(section)}:
            pass
        case _:
            raise _damaged(source, name, "it has no dtype, shape, stride and section")
    if kind not in DTYPES:
        raise _damaged(source, name, f"its dtype {kind!r} is not known")
    if not _are_sizes(shape) or not _are_sizes(stride) or len(shape) != len(stride):
        raise _damaged(source, name, "its shape and strides are not sizes")
    if section not in sections:
        raise _damaged(source, name, f"there is no section {section!r}")
    dtype = DTYPES[kind]
    data = sections[section]
    needed = _span(shape, stride) * dtype.itemsize
    if len(data) != needed or not _countable(shape, dtype):
        raise _damaged(source, name, f"{len(data):,} bytes are not a {kind} of shape {shape}")
    return dtype, shape, stride, data


def _are_sizes(values: list[Any]) -> bool:
    return len(values) <= MAX_DIMS and all(type(v) is int and 0 <= v < _MAX_SIZE for v in values)


def _countable(shape: list[int], dtype: torch.dtype) -> bool:
    """Expanded, a tensor has more elements than bytes; but torch counts them in 64 bits."""
    return math.prod(max(size, 1) for size in shape) * dtype.itemsize < _MAX_SIZE


def _damaged(source: str, name: str, why: str) -> DamagedFile:
    return DamagedFile(
        f"{source} is damaged: tensor {name!r}: {why}",
        fix="delete it and let it be written again, or use a copy",
    )
