"""What to do about an error that an op raised: from torch's words to the user's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pantile.program.spec import TensorSpec

Arguments = Mapping[str, Any]


def describe(arguments: Arguments) -> str:
    """`x: float32[2, 8], mask: None`: the arguments by name."""
    return ", ".join(f"{name}: {_kind(value)}" for name, value in arguments.items())


def advise(message: str, arguments: Arguments) -> str:
    """The fix for an error with this message, raised by ops on these arguments."""
    for pattern, fix in _RULES:
        if pattern.search(message):
            return fix(arguments)
    return "call the model on the CPU with these shapes and dtypes to see the same error"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(TensorSpec.of(value))
    if isinstance(value, TensorSpec) or value is None:
        return str(value)
    return type(value).__name__


def _tensors(arguments: Arguments) -> dict[str, TensorSpec]:
    specs = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            specs[name] = TensorSpec.of(value)
        elif isinstance(value, TensorSpec):
            specs[name] = value
    return specs


def _range(arguments: Arguments) -> str:
    whole = [n for n, s in _tensors(arguments).items() if not s.dtype.is_floating_point]
    check = f" of {', '.join(whole)}" if whole else ""
    return (
        f"an index or label is outside its range: check the values{check} "
        "(class labels run from 0 to C-1; ignore_index skips a sample)"
    )


def _indices(arguments: Arguments) -> str:
    """Labels and indices must be integers; of several candidates they are of the lowest rank."""
    floats = {n: s for n, s in _tensors(arguments).items() if s.dtype.is_floating_point}
    if not floats:
        return "pass indices and class labels as integers: .long()"
    name = min(reversed(floats), key=lambda n: len(floats[n].shape))
    return f"indices and class labels are integers: pass {name}.long()"


def _dtypes(arguments: Arguments) -> str:
    casts = [
        f"{name}.real" if spec.dtype.is_complex else f"{name}.float()"
        for name, spec in _tensors(arguments).items()
        if spec.dtype is not torch.float32
    ]
    return f"pass the type of the weights: {', '.join(casts) or 'model.float()'}"


def _shapes(arguments: Arguments) -> str:
    names = ", ".join(_tensors(arguments)) or "the arguments"
    return f"check the shape of {names}: the message says which sizes do not fit together"


def _not_tensors(arguments: Arguments) -> str:
    others = [n for n, v in arguments.items() if not isinstance(v, torch.Tensor | TensorSpec)]
    return f"pass a tensor: torch.as_tensor({others[0] if others else 'value'})"


_Rule = tuple[re.Pattern[str], Callable[[Arguments], str]]
# The first that matches counts; the words are those of torch 2.13.
_RULES: tuple[_Rule, ...] = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (r"out of (bounds|range)", _range),
        (r"for index|'indices'|Long or Byte|scalar type Long|used as ind(ices|exes)", _indices),
        (r"same dtype|scalar type|not implemented for|should be the same|same type", _dtypes),
        (r"must be Tensor, not|'NoneType' object|object has no attribute", _not_tensors),
        (r"shape|size|dimension|batch|broadcast|channels", _shapes),
    )
)
