"""Functions of Inductor's host program that have no C interface, described for `Calls`.

Most of ATen has a C function. What has none (custom operators, some rare ones) is called through
Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pantile.errors import ProgramError
from pantile.program.targets import find_target

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
