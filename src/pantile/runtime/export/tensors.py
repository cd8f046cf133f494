"""The tensors of a file: each memory once, so that tensors that shared it share it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pantile.errors import StoreError
from pantile.runtime.export.objects import torch_constant

Row = list[Any]


class TensorTable:
    """Numbers tensors while a file is being put together."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor, where: str) -> int:
        """The number of the tensor; what cannot be stored as bytes is an error."""
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise StoreError(
                f"{where} is a {tensor.layout} tensor on {tensor.device}: only dense tensors on "
                "the CPU can be exported",
                fix=f"replace {where} by a dense tensor on the CPU before wrapping the model",
            )
        if tensor.is_quantized:
            raise StoreError(
                f"{where} is a quantised tensor, which cannot be exported",
                fix=f"dequantise {where} before wrapping the model",
            )
        with torch.no_grad():
            self._tensors.append(tensor.detach().resolve_conj().resolve_neg())
        return len(self._tensors) - 1

    def finished(self) -> tuple[list[Row], dict[str, torch.Tensor]]:
        """For each tensor how to make it, and the tensors to store, by name."""
        uses = Counter(_memory(tensor) for tensor in self._tensors)
        stored: dict[str, torch.Tensor] = {}
        rows: list[Row] = []
        for number, tensor in enumerate(self._tensors):
            place = _memory(tensor)
            if place is not None and uses[place] > 1:
                stored.setdefault(f"m{place}", _bytes_of(tensor))
                rows.append([f"m{place}", *_layout(tensor)])
            else:
                stored[f"t{number}"] = _compact(tensor)
                rows.append([f"t{number}"])
        names = {name: f"{name[0]}{i}" for i, name in enumerate(stored)}
        return (
            [[names[name], *layout] for name, *layout in rows],
            {names[name]: tensor for name, tensor in stored.items()},
        )


def make_tensor(row: Sequence[Any], stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of a row, inside the memory that was stored for it."""
    name, *layout = row
    if not layout:
        whole = stored[name]
        dtype, offset = whole.dtype, whole.storage_offset()
        return _on(whole, dtype, offset, whole.shape, whole.stride())
    dtype_name, offset, shape, stride = layout
    dtype, memory = torch_constant(dtype_name), stored[name]
    numbers = [offset, *shape, *stride]
    if len(shape) != len(stride) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"tensor layout {layout}")
    # `set_` would enlarge the memory instead of refusing.
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * dtype.itemsize > memory.untyped_storage().nbytes():
        raise ValueError(f"tensor layout {layout} leaves its memory")
    return _on(memory, dtype, offset, shape, stride)


def _on(
    memory: torch.Tensor, dtype: torch.dtype, offset: Any, shape: Any, stride: Any
) -> torch.Tensor:
    """A tensor on that memory that is no view of another tensor: views are captured as such."""
    made = torch.empty(0, dtype=dtype, device="cpu")
    return made.set_(memory.untyped_storage(), offset, shape, stride)


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else None


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _layout(tensor: torch.Tensor) -> list[Any]:
    dtype = str(tensor.dtype)
    return [dtype, tensor.storage_offset(), list(tensor.shape), list(tensor.stride())]


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, without memory that only it could reach and does not use."""
    used = tensor.numel() * tensor.element_size()
    if tensor.untyped_storage().nbytes() == used:
        return tensor
    return tensor.clone(memory_format=torch.preserve_format)
