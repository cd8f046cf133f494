"""Write programs in the wire format of protocol buffers, independently of the reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

FLOAT32, INT64 = 5, 3
_INT, _FLOAT, _STRING, _INTS, _FLOATS, _BOOLEAN, _LONG = 0, 1, 2, 3, 4, 6, 9


def varint(number: int) -> bytes:
    """A number, seven bits a byte."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number(field: int, value: int) -> bytes:
    """A field with a whole number."""
    return varint(field << 3) + varint(value)


def raw(field: int, value: bytes | str) -> bytes:
    """A field with bytes, text or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def single(field: int, value: float) -> bytes:
    """A field with a float32."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def tensor_type(dtype: int, shape: Iterable[int]) -> bytes:
    """A TensorDesc."""
    return number(1, dtype) + b"".join(number(2, size) for size in shape)


def variable(
    name: str, shape: Iterable[int], *, dtype: int = FLOAT32, persistable: bool = False
) -> bytes:
    """A VarDesc of a tensor."""
    lod_tensor = raw(1, tensor_type(dtype, shape))
    kind = number(1, 7) + raw(3, lod_tensor)
    return raw(1, name) + raw(2, kind) + number(3, persistable)


def attribute(name: str, value: Any) -> bytes:
    """An attribute of the type the Python value has."""
    start = raw(1, name)
    if isinstance(value, bool):
        return start + number(2, _BOOLEAN) + number(10, value)
    if isinstance(value, int):
        return start + number(2, _INT) + number(3, value)
    if isinstance(value, float):
        return start + number(2, _FLOAT) + single(4, value)
    if isinstance(value, str):
        return start + number(2, _STRING) + raw(5, value)
    if any(isinstance(item, float) for item in value):
        return start + number(2, _FLOATS) + b"".join(single(7, item) for item in value)
    return start + number(2, _INTS) + b"".join(number(6, item) for item in value)


def operator(
    kind: str,
    inputs: Mapping[str, Iterable[str]],
    outputs: Mapping[str, Iterable[str]],
    **attributes: Any,
) -> bytes:
    """An OpDesc."""
    slots = [(1, inputs), (2, outputs)]
    data = b"".join(
        raw(field, raw(1, slot) + b"".join(raw(2, name) for name in names))
        for field, table in slots
        for slot, names in table.items()
    )
    attrs = b"".join(raw(4, attribute(name, value)) for name, value in attributes.items())
    return data + raw(3, kind) + attrs


def program(variables: Iterable[bytes], operators: Iterable[bytes]) -> bytes:
    """A ProgramDesc of one block."""
    block = number(1, 0) + number(2, -1)
    block += b"".join(raw(3, v) for v in variables) + b"".join(raw(4, op) for op in operators)
    return raw(1, block)


def parameter(dtype: int, shape: Iterable[int], data: bytes) -> bytes:
    """One tensor of a parameter file."""
    description = tensor_type(dtype, shape)
    head = struct.pack("<IQI", 0, 0, 0) + struct.pack("<i", len(description))
    return head + description + data
