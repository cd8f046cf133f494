"""`custom_op`: ops that a program brings along.

    register_custom_op("com.acme", "Cube", 1, lambda x: x**3)
    (y,) = custom_op([x], "Cube", "com.acme", 1, example_outputs=[x])

The table is keyed by (domain, name, version). A registered function is ordinary torch code, and so
has a gradient; an `autograd.Function` brings its own. A C++ op is registered with `torch.library`
and found as `torch.ops.<domain>.<name>`, dots in the domain written as underscores
(`library_op.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pantile.errors import CaptureError, OperandError, OperandValueError
from pantile.ops.context import current, strict_mode
from pantile.ops.gathering import gather_last_dim
from pantile.ops.library_op import call_library_op, library_op
from pantile.ops.operands import require_tensor

Function = Callable[..., Any]

#: Filled with the ops that PopTorch's own package brings along.
_functions: dict[tuple[str, str, int], Function] = {
    ("poptorch.custom_ops", "FastGatherLastDim", 1): gather_last_dim,
}
#: What calls were given as attributes, by `attr:<number>`, for `accessAttributes`.
ATTRIBUTES: dict[str, Mapping[str, Any]] = {}
_FLOAT32_MAX = torch.finfo(torch.float32).max
_INT64 = torch.iinfo(torch.int64)


def register_custom_op(domain: str, name: str, version: int, function: Function) -> None:
    """Make `custom_op(inputs, name, domain, version, …)` call `function(*inputs, **attributes)`.

    The function returns one tensor or a sequence of them. Registering again replaces it.
    """
    if not callable(function):
        raise OperandError(
            f"register_custom_op: function={function!r} cannot be called",
            fix="pass a function of tensors",
        )
    _functions[(domain, name, version)] = function


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Call a registered op. The results have the shapes and types of `example_outputs`.

    On the CPU an op that is not registered gives zeros of those shapes, as does every op in
    strict mode.
    """
    for index, tensor in enumerate(inputs):
        require_tensor("custom_op", f"inputs[{index}]", tensor)
    for index, tensor in enumerate(example_outputs):
        require_tensor("custom_op", f"example_outputs[{index}]", tensor)
    checked = _check_attributes(attributes or {})
    if checked and current() is not None:
        ATTRIBUTES[f"attr:{len(ATTRIBUTES)}"] = checked
    function = _functions.get((domain, name, domain_version))
    packet = library_op(domain, name) if function is None else None
    missing = function is None and packet is None
    if current() is None and (missing or strict_mode()):
        return [torch.zeros_like(example) for example in example_outputs]
    if missing:
        raise CaptureError(
            f"custom_op: no op name={name!r}, domain={domain!r}, domain_version={domain_version} "
            "is registered",
            fix="call register_custom_op(domain, name, version, function) before compiling",
        )
    if function is not None:
        result = function(*inputs, **checked)
    else:
        result = call_library_op(packet, inputs, checked, example_outputs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    _check_outputs(name, outputs, example_outputs)
    return outputs


def _check_outputs(
    name: str, outputs: Sequence[torch.Tensor], examples: Sequence[torch.Tensor]
) -> None:
    found, wanted = (
        [(tuple(t.shape), t.dtype) for t in tensors] for tensors in (outputs, examples)
    )
    if found != wanted:
        raise CaptureError(
            f"custom_op: {name!r} returned {found}, example_outputs says {wanted}",
            fix="make example_outputs look like the results of the op",
        )


def _check_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise OperandValueError(
                f"custom_op: attributes has a key {name!r} that is not a str",
                fix="use strings as attribute names",
            )
        if isinstance(value, (list, tuple)):
            _check_list(name, value)
        else:
            _check_value(name, value)
    return dict(attributes)


def _check_list(name: str, values: Sequence[Any]) -> None:
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        raise OperandValueError(
            f"custom_op: attribute {name!r} mixes {', '.join(sorted(k.__name__ for k in kinds))}",
            fix="make all elements floats, ints or strings",
        )
    for value in values:
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, float):
        _check_float(name, value)
    elif isinstance(value, str):
        if not value.isascii():
            raise OperandValueError(
                f"custom_op: attribute {name!r}: {value} contains non-ASCII characters.",
                fix="use ASCII characters only",
            )
    elif isinstance(value, bool) or not isinstance(value, int):
        raise OperandValueError(
            f"custom_op: attribute {name!r} has a value of type {type(value).__name__}",
            fix="pass a float, an int, a str, or a list or tuple of one of these",
        )
    elif not _INT64.min <= value <= _INT64.max:
        raise OperandValueError(
            f"custom_op: attribute {name!r}={value} does not fit 64 bits",
            fix="pass a smaller integer",
        )


def _check_float(name: str, value: float) -> None:
    if abs(value) <= _FLOAT32_MAX or value in (float("inf"), float("-inf")) or value != value:
        return
    side = "high" if value > 0 else "low"
    raise OperandError(
        f"custom_op: attribute {name!r}: {value:g} is too {side} for a Popart float attribute.",
        fix=f"pass a value between {-_FLOAT32_MAX} and {_FLOAT32_MAX}",
    )
