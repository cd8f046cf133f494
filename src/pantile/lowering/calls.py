"""Operators that a compiled program calls through Python.

    program ── index, tensors ──▶ Calls ── torch.ops… ──▶ results into the handles it was given

A call costs about 10 µs this way, and works with any operator torch knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pantile.lowering.handles import assign, handles_of, tensor_of, tensors_taken
from pantile.program.calls import tensors_in
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
        self._calls = [_Owned(call) if "results" in call else _Lent(call) for call in described]
        self.error: BaseException | None = None
        self.callback = CALLBACK(self._call)

    def _call(self, index: int, _ints: int, _values: Any, count: int, handles: Any) -> int:
        call, before = self._calls[index], torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(call.keeps)
            call.run([handles[i] for i in range(count)], handles)
            return 0
        except BaseException as error:  # it crosses C++; the executor raises it again
            self.error = error
            return 1
        finally:
            torch._C._set_grad_enabled(before)


class _Lent:
    """A call from Inductor's host program: it keeps all handles, results are assigned to them."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self._arguments, self._positional = call["arguments"], call["positional"]
        self._operator = find_target(call["operator"])
        self.keeps = call["operator"] in _KEEP_FOR_BACKWARD

    def run(self, handles: Sequence[int], _: Any) -> None:
        """Call the operator."""
        pending = iter(handles)
        tensors = (_tensor(handle) for handle in pending)
        positional, named = _decoded(self._arguments, self._positional, tensors)
        results = tensors_in(self._operator(*positional, **named))
        for handle, tensor in zip(pending, results, strict=False):
            assign(tensor, handle)


class _Owned:
    """A call between our kernels, which gives its handles away and takes those of the results.

    A call with one operand takes 9 µs, where lending takes 13.
    """

    def __init__(self, call: Mapping[str, Any]) -> None:
        self._arguments, self._positional = call["arguments"], call["positional"]
        self._operator = find_target(call["operator"])
        self._results = [(place, tuple(strides)) for place, strides in call["results"]]
        self.keeps = call["operator"] in _KEEP_FOR_BACKWARD

    def run(self, handles: Sequence[int], taken: Any) -> None:
        """Call the operator."""
        count = len(handles) - len(self._results)
        operands = tensors_taken(handles[:count])
        if self.keeps:
            operands = [tensor.detach() for tensor in operands]
        positional, named = _decoded(self._arguments, self._positional, iter(operands))
        made = self._operator(*positional, **named)
        results = [
            _settled(made if isinstance(made, torch.Tensor) else made[place], strides, operands)
            for place, strides in self._results
        ]
        for place, handle in enumerate(handles_of(results), count):
            taken[place] = handle


_is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]


def _settled(
    tensor: torch.Tensor, strides: tuple[int, ...], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """A result as kernels read it: with strides they know, in memory nobody else writes to."""
    shared = any(_is_alias_of(tensor, operand) for operand in operands)
    if not shared and tensor.stride() == strides and not tensor.is_neg():
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _decoded(
    arguments: Sequence[Sequence[Any]],
    positional: Sequence[str],
    tensors: Iterator[torch.Tensor | None],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator, those that have no name first."""
    given = {name: _argument(kind, value, tensors) for name, kind, value in arguments}
    return [given.pop(name) for name in positional if name in given], given


def _argument(kind: str, value: Any, tensors: Iterator[torch.Tensor | None]) -> Any:
    if kind == "tensor":
        return next(tensors)
    if kind == "tensors":
        return [next(tensors) for _ in range(value)]
    if kind == "optional tensors":
        return [next(tensors) if there else None for there in value]
    if kind == "torch":
        return getattr(torch, value)
    return torch.device(value) if kind == "device" else value


def _tensor(handle: int) -> torch.Tensor | None:
    """The tensor without its wish for gradients; None if it is undefined."""
    found: torch.Tensor | None = tensor_of(handle)
    return None if found is None else found.detach()
