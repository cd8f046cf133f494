"""Which products are half empty, because a causal mask hides the future.

    scores   = query @ key^T            above the diagonal nobody looks       RESULT
    hidden   = where(column <= row, scores, -inf)
    chances  = exp(hidden - most)       zero above the diagonal
    mixed    = chances @ value          sums end at the diagonal              LEFT_LOWER
    to_value = chances^T @ gradient     sums begin at the diagonal            LEFT_UPPER

Only masks that compare counted rows with counted columns are known, not those that are data; and
a right operand that is half zero is multiplied whole.
A row that holds NaN or infinity makes NaN of what it is multiplied into, but not of what lies
above the diagonal: torch's kernel of attention leaves those blocks out as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.expressions import ALIASES, RESHAPES
from pantile.lowering.kernels.types import shape_of

aten, prims = torch.ops.aten, torch.ops.prims

_PRODUCTS = (aten.mm.default, aten.bmm.default)
_CASTS = (aten._to_copy.default, prims.convert_element_type.default)
_SAME_SHAPE = frozenset({*ALIASES, *RESHAPES, *_CASTS, aten.expand.default})
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default)
_COUNTED = frozenset({*_SAME_SHAPE, aten.unsqueeze.default})
_COLUMN_FIRST: dict[Any, bool] = {aten.le.Tensor: True, aten.gt.Tensor: False}
_ROW_FIRST: dict[Any, bool] = {aten.ge.Tensor: True, aten.lt.Tensor: False}


class Triangle(Enum):
    """What of a product need not be computed."""

    RESULT = auto()
    """Results above the diagonal."""
    LEFT_LOWER = auto()
    """Terms of the left operand above the diagonal, which are zero."""
    LEFT_UPPER = auto()
    """Terms of the left operand below the diagonal, which are zero."""


class _Known(Enum):
    """What is known of a matrix off its triangle."""

    MINUS_INFINITE_ABOVE = auto()
    ZERO_ABOVE = auto()
    ZERO_BELOW = auto()


@dataclass(frozen=True)
class Triangles:
    """What is known of a graph."""

    products: dict[fx.Node, Triangle] = field(default_factory=dict)
    """The products of which a part is left out."""
    blank: frozenset[fx.Node] = frozenset()
    """Values above whose diagonal zeros may stand: they do anyway, or nobody looks."""


def triangles(nodes: Sequence[fx.Node]) -> Triangles:
    """Find the masks, and follow what they hide."""
    known: dict[fx.Node, _Known] = {}
    matrices = [n for n in nodes if n.op == "call_function" and len(_shape(n)) >= 2]
    for node in matrices:
        if (fact := _known(node, known)) is not None:
            known[node] = fact
    if not known:
        return Triangles()
    hidden: set[fx.Node] = set()
    for node in reversed(matrices):
        if _is_hidden(node, known, hidden):
            hidden.add(node)
    sides = {_Known.ZERO_ABOVE: Triangle.LEFT_LOWER, _Known.ZERO_BELOW: Triangle.LEFT_UPPER}
    found: dict[fx.Node, Triangle] = {}
    for product in (node for node in matrices if node.target in _PRODUCTS):
        left: Any = product.args[0]
        side = sides.get(known.get(left))  # type: ignore[arg-type]
        if side is not None:
            found[product] = side
        elif product in hidden:
            found[product] = Triangle.RESULT
    zero = {node for node, fact in known.items() if fact is _Known.ZERO_ABOVE}
    return Triangles(found, frozenset(zero | hidden))


def _shape(node: fx.Node) -> tuple[int, ...]:
    return shape_of(node) if isinstance(node.meta.get("val"), torch.Tensor) else ()


def _known(node: fx.Node, known: dict[fx.Node, _Known]) -> _Known | None:
    """What is known of a value, from what is known of its arguments."""
    if node.target is aten.where.self:
        return _masked(node)[1]
    facts = {other: known[other] for other in node.all_input_nodes if other in known}
    if not facts:
        return None
    source = node.args[0]
    fact = known.get(source) if isinstance(source, fx.Node) else None
    if node.target is aten.permute.default:
        return _turned(node, fact)
    if node.target in _SAME_SHAPE:
        return fact if _shape(node)[-2:] == _shape(source)[-2:] else None  # type: ignore[arg-type]
    if node.target is aten.exp.default:
        return _Known.ZERO_ABOVE if fact is _Known.MINUS_INFINITE_ABOVE else None
    if node.target in _SUMS:
        return fact if fact is _Known.MINUS_INFINITE_ABOVE else None
    if node.target in _FACTORS:
        zeros = [f for f in facts.values() if f is not _Known.MINUS_INFINITE_ABOVE]
        return zeros[0] if zeros and (fact in zeros or "mul" in str(node.target)) else None
    return None


def _turned(node: fx.Node, fact: _Known | None) -> _Known | None:
    """The last two dims change places, or stay."""
    order: Any = node.args[1]
    rank = len(order)
    last = [dim % rank for dim in order[-2:]]
    if last == [rank - 2, rank - 1]:
        return fact
    other = {_Known.ZERO_ABOVE: _Known.ZERO_BELOW, _Known.ZERO_BELOW: _Known.ZERO_ABOVE}
    return other.get(fact) if last == [rank - 1, rank - 2] and fact is not None else None


def _masked(node: fx.Node) -> tuple[fx.Node | None, _Known | None]:
    """What a choice shows up to the diagonal, and what it has above."""
    condition, yes, no = node.args[:3]
    assert isinstance(condition, fx.Node)
    lower = _is_lower(condition)
    if lower is None:
        return None, None
    shown, hidden = (yes, no) if lower else (no, yes)
    if not isinstance(shown, fx.Node) or _shape(shown) != _shape(node):
        return None, None
    values = {float("-inf"): _Known.MINUS_INFINITE_ABOVE, 0: _Known.ZERO_ABOVE}
    fact = values.get(_constant(hidden))
    return (None, None) if fact is None else (shown, fact)


def _constant(value: Any) -> Any:
    """The number that stands everywhere; None if there is none."""
    if not isinstance(value, fx.Node):
        return None
    places: dict[Any, int] = {aten.scalar_tensor.default: 0, aten.full.default: 1}
    place = places.get(value.target)
    return None if place is None else value.args[place]


def _is_lower(condition: fx.Node) -> bool | None:
    """Is it true where column <= row? False if it is true in all other places; None if neither."""
    if condition.target in (aten.logical_not.default, aten.bitwise_not.default):
        below = _is_lower(condition.args[0])  # type: ignore[arg-type]
        return None if below is None else not below
    if len(condition.args) != 2 or not all(isinstance(x, fx.Node) for x in condition.args):
        return None
    counted = [_counts(x) for x in condition.args]  # type: ignore[arg-type]
    if counted == ["column", "row"]:
        return _COLUMN_FIRST.get(condition.target)
    return _ROW_FIRST.get(condition.target) if counted == ["row", "column"] else None


def _counts(node: fx.Node) -> str | None:
    """Is it the number of the row, or of the column?"""
    *more, rows, columns = (1, 1, *shape_of(node))
    while node.target in _COUNTED:
        node = node.args[0]  # type: ignore[assignment]
    if node.target is not prims.iota.default or any(size != 1 for size in more):
        return None
    if node.kwargs.get("start", 0) != 0 or node.kwargs.get("step", 1) != 1:
        return None
    if rows == node.args[0] and columns == 1:
        return "row"
    return "column" if columns == node.args[0] and rows == 1 else None


def _is_hidden(node: fx.Node, known: Mapping[fx.Node, _Known], hidden: Collection[fx.Node]) -> bool:
    """Is nothing above the diagonal looked at? It may be multiplied with zero, if it is finite.

    `hidden` are those of the later nodes of which that is true.
    """
    if not node.users:
        return False
    for user in node.users:
        if user.target is aten.where.self and _masked(user)[0] is node:
            continue
        if user.target is aten.mul.Tensor and _shape(user)[-2:] == _shape(node)[-2:]:
            others = [known.get(other) for other in user.all_input_nodes if other is not node]
            if _Known.ZERO_ABOVE in others:
                continue
        passes = user.target in (*_SAME_SHAPE, *_SUMS, *_FACTORS)
        if not passes or _shape(user)[-2:] != _shape(node)[-2:] or user not in hidden:
            return False
    return True
