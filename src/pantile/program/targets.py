"""The names of callables in the text form: `aten.add.Tensor`, `higher_order.cond`, `operator.mul`.

    name_of(torch.ops.aten.add.Tensor)   ->  "aten.add.Tensor"
    find_target("aten.add.Tensor")       ->  torch.ops.aten.add.Tensor

A name is looked up in `torch.ops` and in the table below, nowhere else: a text form can call what
torch registered as an operator, and cannot reach the rest of Python.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace

from pantile.errors import ProgramError

_OPERATORS = (
    "abs add and_ eq floordiv ge getitem gt index invert le lshift lt mod mul ne neg not_ or_ pos "
    "pow rshift sub truediv truth xor"
)
_MATH = (
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp expm1 fabs floor fmod "
    "isfinite isinf isnan log log10 log1p log2 pow sin sinh sqrt tan tanh trunc"
)
_BUILTINS: tuple[Callable[..., Any], ...] = (abs, bool, float, int, max, min, pow, round)
_SYMBOLIC = "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt _sym_sqrt"

PYTHON_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS.split()},
    **{f"math.{name}": getattr(math, name) for name in _MATH.split()},
    **{function.__name__: function for function in _BUILTINS},
    **{f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC.split() if hasattr(torch, name)},
}
"""What a graph may call on Python numbers, by the name it has in the text form."""

_PYTHON_NAMES = {function: name for name, function in PYTHON_FUNCTIONS.items()}

# Torch registers these operators when the module is imported, which `import torch` does not do.
_REGISTERED_BY = {"higher_order": "torch._higher_order_ops", "prims": "torch._prims"}


def name_of(target: object) -> str | None:
    """The name of a callable in the text form; None if it has none."""
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.__name__}"
    try:
        return _PYTHON_NAMES.get(target)  # type: ignore[call-overload, no-any-return]
    except TypeError:  # not hashable, so not one of ours
        return None


def find_target(name: str) -> Callable[..., Any]:
    """The callable of that name."""
    known = PYTHON_FUNCTIONS.get(name)
    if known is not None:
        return known
    found = _find_operator(name.split("."))
    if found is None:
        raise ProgramError(
            f"there is no operator {name!r}",
            fix="import the package that registers it, or correct the name",
        )
    return found


def _find_operator(parts: list[str]) -> Callable[..., Any] | None:
    if len(parts) not in (2, 3):
        return None
    namespace = getattr(torch.ops, parts[0], None)
    if not isinstance(namespace, _OpNamespace) and parts[0] != "higher_order":
        return None
    if parts[0] in _REGISTERED_BY:
        importlib.import_module(_REGISTERED_BY[parts[0]])
    packet = getattr(namespace, parts[1], None)
    if isinstance(packet, HigherOrderOperator):
        return packet if len(parts) == 2 else None
    if not isinstance(packet, OpOverloadPacket) or len(parts) != 3:
        return None
    overload = getattr(packet, parts[2], None)
    return overload if isinstance(overload, OpOverload) else None
