"""Stop at the op that made an infinity or a NaN (`Precision.enableFloatingPointExceptions`).

    all operands finite, result infinite        overflow, or division by zero
    no operand NaN, result NaN                  an invalid operation: inf - inf, 0 * inf, sqrt(-1)
    a comparison with a NaN                     invalid

An infinity that an operand has already, such as a mask of -inf, is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from pantile.errors import FloatingPointFault
from pantile.program.program import WRITE, tag_of

_UNINITIALISED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "maximum", "minimum"})


def is_checked(node: fx.Node) -> bool:
    """Can this op be at fault?"""
    return (
        node.op == "call_function"
        and node.target is not WRITE
        and _name(node) not in _UNINITIALISED
    )


def check(node: fx.Node, result: Any, operands: tuple[Any, ...]) -> None:
    """Raise if this op made a number that is not finite."""
    values = list(_floats(result))
    with_nan = any(bool(torch.isnan(value).any()) for value in values)
    with_infinity = any(bool(torch.isinf(value).any()) for value in values)
    if with_nan and not _any(torch.isnan, operands):
        raise _fault(node, "an invalid operation: its result has a NaN, and its operands have none")
    if with_infinity and not _any(torch.isinf, operands):
        raise _fault(node, "an overflow, or a division by zero: its result is infinite")
    if _name(node) in _COMPARISONS and _any(torch.isnan, operands):
        raise _fault(node, "an invalid comparison with a NaN")


def _any(test: Any, operands: tuple[Any, ...]) -> bool:
    return any(bool(test(value).any()) for value in _floats(operands))


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _floats(part)


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "_overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _fault(node: fx.Node, what: str) -> FloatingPointFault:
    tag = tag_of(node)
    where = f" in {tag.module}" if tag.module else ""
    return FloatingPointFault(
        f"floating-point exception: {node.target} ({tag.phase}{where}) made {what}",
        fix="keep its operands in range (a smaller learning rate or loss_scaling, a clamp, an "
        "epsilon), or call Precision.enableFloatingPointExceptions(False)",
        location=tag.source,
    )
