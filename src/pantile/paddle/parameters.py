"""Read `.pdiparams`: the weights of a saved model, one after the other.

    u32 version · u64 LoD levels (u64 length, bytes)* · u32 version · i32 length · TensorDesc · data

There are no names in the file: the weights lie in the order of the names of the persistable
variables of the program. Sizes are checked against the rest of the file before anything is made.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

from pantile.errors import DamagedFile
from pantile.paddle.description import damaged, read_tensor_type
from pantile.paddle.wire import Message

_MOST_DIMENSIONS = 16


def read_parameters(
    data: bytes, names: Sequence[str], what: str = "parameters"
) -> dict[str, torch.Tensor]:
    """The tensors of the file, by name, in the order the names are given."""
    reader = _Reader(memoryview(data), what)
    found = {name: reader.tensor(name) for name in names}
    if reader.position != len(data):
        raise damaged(
            what,
            f"{len(data) - reader.position} bytes follow the last of {len(names)} parameters; "
            "it may belong to another program",
        )
    return found


class _Reader:
    def __init__(self, data: memoryview, what: str) -> None:
        self._data = data
        self._what = what
        self.position = 0

    def _take(self, length: int, name: str) -> memoryview:
        end = self.position + length
        if length < 0 or end > len(self._data):
            left = len(self._data) - self.position
            raise self._fault(name, f"{length} bytes are needed and {left} are left")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def _fault(self, name: str, why: str) -> DamagedFile:
        return damaged(f"{self._what}, byte {self.position}, parameter {name!r}", why)

    def _number(self, code: str, name: str) -> int:
        (number,) = struct.unpack(f"<{code}", self._take(struct.calcsize(code), name))
        return int(number)

    def tensor(self, name: str) -> torch.Tensor:
        """The next tensor of the file."""
        self._version(name)
        levels = self._number("Q", name)
        if levels > len(self._data) // 8:
            raise self._fault(name, f"{levels} levels of detail cannot be in this file")
        for _ in range(levels):
            self._take(self._number("Q", name), name)
        self._version(name)
        length = self._number("i", name)
        place = self.position
        dtype, shape = read_tensor_type(Message(self._take(length, name), self._what, place))
        if dtype is None:
            raise self._fault(name, "its type is none that torch has")
        if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
            raise self._fault(name, f"shape {list(shape)} is impossible")
        count = math.prod(shape)
        # Bounded first: a huge product must not become a huge allocation.
        raw = self._take(count * dtype.itemsize, name)
        if not count:
            return torch.empty(shape, dtype=dtype)
        if dtype is torch.bool:  # any byte may be in the file, a bool is 0 or 1
            return (torch.frombuffer(bytearray(raw), dtype=torch.uint8) != 0).reshape(shape)
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)

    def _version(self, name: str) -> None:
        version = self._number("I", name)
        if version:
            raise self._fault(name, f"version {version} of the tensor format is unknown")
