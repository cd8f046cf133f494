"""Operators that a compiled program calls through Python.

    program ── index, tensors ──▶ Calls ── torch.ops… ──▶ results into the handles it was given

A call costs about 10 µs this way, and works with any operator torch knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pantile.lowering.handles import assign, tensor_of
from pantile.program.targets import find_target

CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
)

# They keep what their backward needs only while gradients are enabled.
_KEEP_FOR_BACKWARD = frozenset({"aten.mkldnn_rnn_layer.default"})


class Calls:
    """Runs the recorded calls of one program."""

    def __init__(self, described: Sequence[Mapping[str, Any]]) -> None:
        self._described = described
        self._operators = [find_target(call["operator"]) for call in described]
        self.error: BaseException | None = None
        self.callback = CALLBACK(self._call)

    def _call(self, index: int, _ints: int, _values: Any, count: int, handles: Any) -> int:
        try:
            keeps = self._described[index]["operator"] in _KEEP_FOR_BACKWARD
            with torch.set_grad_enabled(keeps):
                self._run(index, [handles[i] for i in range(count)])
            return 0
        except BaseException as error:  # it crosses C++; the executor raises it again
            self.error = error
            return 1

    def _run(self, index: int, handles: list[int]) -> None:
        call, pending = self._described[index], iter(handles)
        given = {name: _decoded(kind, value, pending) for name, kind, value in call["arguments"]}
        operands = [*_tensors([*given.values()])] if "results" in call else []
        positional = [given.pop(name) for name in call["positional"] if name in given]
        made = _tensors(self._operators[index](*positional, **given))
        results = _chosen([*made], call["results"], operands) if "results" in call else made
        for handle, tensor in zip(pending, results, strict=False):
            assign(tensor, handle)


_is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]


def _chosen(
    made: Sequence[torch.Tensor],
    wanted: Sequence[tuple[int, Sequence[int]]],
    operands: Sequence[torch.Tensor],
) -> Iterator[torch.Tensor]:
    """The results that kernels read: with strides they know, in memory nobody else writes to."""
    for place, strides in wanted:
        tensor = made[place]
        shared = any(_is_alias_of(tensor, operand) for operand in operands)
        if shared or tensor.is_neg() or tensor.stride() != tuple(strides):
            own = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
            tensor = own.copy_(tensor)
        yield tensor


def _decoded(kind: str, value: Any, handles: Iterator[int]) -> Any:
    if kind == "tensor":
        return _tensor(next(handles))
    if kind == "tensors":
        return [_tensor(next(handles)) for _ in range(value)]
    if kind == "optional tensors":
        return [_tensor(next(handles)) if there else None for there in value]
    if kind == "torch":
        return getattr(torch, value)
    return torch.device(value) if kind == "device" else value


def _tensor(handle: int) -> torch.Tensor | None:
    """The tensor without its wish for gradients; None if it is undefined."""
    found: torch.Tensor | None = tensor_of(handle)
    return None if found is None else found.detach()


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors(item)
