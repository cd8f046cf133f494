"""The wire format of protocol buffers, read with bounds.

    message  =  (key value)*           key = field number << 3 | wire type
    value    =  varint | 8 bytes | length and bytes | 4 bytes

A file can be cut short or altered: every length is checked against what is left, a varint has at
most ten bytes, and nothing is allocated by a number the file states. What is wrong is a
`DamagedFile` with the place, never an IndexError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pantile.errors import DamagedFile

Value = int | memoryview

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


class Message:
    """The fields of one message, in their order."""

    def __init__(self, data: memoryview, what: str, offset: int = 0) -> None:
        self._data = data
        self._what = what
        self._offset = offset

    def __iter__(self) -> Iterator[tuple[int, int, Value, int]]:
        """Yield (field number, wire type, value, place in the file)."""
        position, end = 0, len(self._data)
        while position < end:
            key, position = self._varint(position)
            number, kind = key >> 3, key & 7
            start = position
            value: Value
            if kind == VARINT:
                value, position = self._varint(position)
            elif kind == EIGHT_BYTES:
                value, position = self._bytes(position, 8)
            elif kind == FOUR_BYTES:
                value, position = self._bytes(position, 4)
            elif kind == BYTES:
                length, start = self._varint(position)
                value, position = self._bytes(start, length)
            else:
                raise self.fault(f"wire type {kind} does not exist", position)
            if number == 0:
                raise self.fault("field number 0 does not exist", start)
            yield number, kind, value, self._offset + start

    def _bytes(self, position: int, length: int) -> tuple[memoryview, int]:
        end = position + length
        if end > len(self._data):
            left = len(self._data) - position
            raise self.fault(f"{length} bytes are announced and {left} are left", position)
        return self._data[position:end], end

    def _varint(self, position: int) -> tuple[int, int]:
        data, result = self._data, 0
        last = min(len(data), position + _MOST_VARINT_BYTES)
        for index in range(position, last):
            byte = data[index]
            result |= (byte & 0x7F) << (7 * (index - position))
            if byte < 0x80:
                return result & 0xFFFF_FFFF_FFFF_FFFF, index + 1
        raise self.fault("a number does not end", position)

    def fault(self, why: str, position: int = 0) -> DamagedFile:
        """The error that says where this message is wrong."""
        return DamagedFile(
            f"{self._what}, byte {self._offset + position}: {why}",
            fix="save the model again; the file was cut short or altered",
        )

    # Values of fields

    def inner(self, value: Value, place: int) -> Message:
        """A field that is a message itself."""
        return Message(self.raw(value, place), self._what, place)

    def raw(self, value: Value, place: int) -> memoryview:
        """A field of bytes."""
        if isinstance(value, int):
            raise self.fault("a number stands where bytes are expected", place - self._offset)
        return value

    def text(self, value: Value, place: int) -> str:
        """A field of text."""
        try:
            return str(self.raw(value, place), "utf-8")
        except UnicodeDecodeError:
            raise self.fault("text is not UTF-8", place - self._offset) from None

    def integer(self, value: Value, place: int) -> int:
        """A signed number."""
        if not isinstance(value, int):
            raise self.fault("bytes stand where a number is expected", place - self._offset)
        return value - (1 << 64) if value >= 1 << 63 else value

    def integers(self, kind: int, value: Value, place: int) -> list[int]:
        """A repeated number: one, or several in a packed field."""
        if kind == VARINT:
            return [self.integer(value, place)]
        packed, found, position = Message(self.raw(value, place), self._what, place), [], 0
        while position < len(packed._data):
            number, position = packed._varint(position)
            found.append(number - (1 << 64) if number >= 1 << 63 else number)
        return found

    def numbers(self, kind: int, value: Value, place: int, *, double: bool = False) -> list[float]:
        """A floating-point number, or several in a packed field."""
        size, code = (8, "d") if double else (4, "f")
        data = self.raw(value, place)
        if len(data) % size or (kind != BYTES and len(data) != size):
            raise self.fault(
                f"{len(data)} bytes are not {8 * size}-bit numbers", place - self._offset
            )
        return list(struct.unpack(f"<{len(data) // size}{code}", data))
