"""Carry a dataset to a worker process without running out of descriptors.

Torch moves every tensor a child is started with to shared memory, one descriptor each: a dataset
with a list of a thousand tensors cannot be sent (a fork server takes 256, a process often 1024).
Here tensors travel as bytes, unless the user shared them on purpose (`share_memory_()`).
"""

from __future__ import annotations

import copyreg
import io
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch


class Carried:
    """A value on its way to the process being started."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # Runs while multiprocessing starts the child: locks, queues and the like can be carried
        # only now, and only by its own pickler.
        buffer = io.BytesIO()
        pickler = ForkingPickler(buffer, -1)
        table = {**copyreg.dispatch_table, **_registered(), torch.Tensor: _reduce_tensor}
        pickler.dispatch_table = table
        pickler.dump(self.value)
        return (_unpack, (buffer.getvalue(),))


def _registered() -> dict[type, Callable[[Any], Any]]:
    """The reducers torch and others added to multiprocessing's pickler."""
    return ForkingPickler._extra_reducers  # type: ignore[attr-defined, no-any-return]


def _unpack(data: bytes) -> Carried:
    return Carried(ForkingPickler.loads(data))


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_conj())
    shared: bool = tensor.is_shared()  # type: ignore[no-untyped-call]
    if shared or not plain or tensor.device.type != "cpu":
        return _registered()[torch.Tensor](tensor)
    # Contiguous bytes of this tensor only: a row of a big tensor must not bring the whole along.
    raw = tensor.detach().contiguous().flatten().view(torch.uint8)
    return (_tensor, (raw.numpy().tobytes(), tensor.dtype, tensor.shape, tensor.requires_grad))


def _tensor(data: bytes, dtype: torch.dtype, shape: torch.Size, requires_grad: bool) -> Any:
    if not data:
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape).requires_grad_(requires_grad)
