"""Functions of a host program that have no C interface: they are called through Python.

    host program ── index, tensors ──▶ Calls ── torch.ops… ──▶ results into the handles it was given

Most of ATen has a C function. What has none (custom operators, some rare ones) costs about 10 µs a
call this way, and works with any operator torch knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pantile.errors import ProgramError
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

_PLAIN = frozenset(
    [
        "as_int",
        "as_ints",
        "as_float",
        "as_floats",
        "as_string",
        "as_strings",
        "as_bool",
        "as_bools",
        "as_int_lists",
        "as_float_lists",
    ]
)
_TORCH_VALUES = {
    "as_scalar_type": "dtype",
    "as_memory_format": "memory format",
    "as_layout": "layout",
}

# They keep what their backward needs only while gradients are enabled.
_KEEP_FOR_BACKWARD = frozenset({"aten.mkldnn_rnn_layer.default"})


def describe_calls(nodes: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Inductor's records of such calls as plain data, for the header of a cache entry."""
    return [_described(node.node) for node in nodes]


def _described(node: Any) -> Mapping[str, Any]:
    name = str(node.target).removeprefix("torch.ops.").replace("::", ".")
    name = name if name.count(".") == 2 else f"{name}.default"
    arguments = [[argument.name, *_encoded(argument.arg, name)] for argument in node.inputs]
    schema = find_target(name)._schema  # type: ignore[attr-defined]
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    return {"operator": name, "arguments": arguments, "positional": positional}


def _encoded(argument: Any, operator: str) -> tuple[str, Any]:
    """What an argument is, and its value unless it is a tensor."""
    kind, value = argument.type, argument.value
    if kind == "as_none":
        return "none", None
    if kind == "as_tensor":
        return "tensor", None
    if kind == "as_tensors":
        return "tensors", len(value)
    if kind == "as_optional_tensor":
        return ("tensor", None) if value.type == "as_tensor" else ("none", None)
    if kind == "as_optional_tensors":
        return "optional tensors", [item.type == "as_tensor" for item in value]
    if kind in _PLAIN:
        return "plain", list(value) if isinstance(value, (list, tuple)) else value
    if kind in _TORCH_VALUES:
        return "torch", _torch_name(kind, value)
    if kind == "as_device":
        return "device", value.type
    raise ProgramError(
        f"an argument of {operator} ({kind}) cannot be recorded",
        fix='run with Options.engine("reference")',
    )


def _torch_name(kind: str, value: Any) -> str:
    from torch._export.serde import serialize

    tables = {
        "as_scalar_type": serialize._SERIALIZE_TO_TORCH_DTYPE,
        "as_memory_format": serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT,
        "as_layout": serialize._SERIALIZE_TO_TORCH_LAYOUT,
    }
    return str(tables[kind][value]).removeprefix("torch.")


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
        positional = [given.pop(name) for name in call["positional"] if name in given]
        result = self._operators[index](*positional, **given)
        for handle, tensor in zip(pending, _tensors(result), strict=False):
            assign(tensor, handle)


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
