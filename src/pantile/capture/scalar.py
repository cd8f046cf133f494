"""Python numbers that are recorded: learning rates, betas, step counts.

An optimizer does arithmetic on Python floats (`1 - beta1**step`) and hands the result to a kernel
as a scalar argument. To match it bit for bit, the graph does the same arithmetic on the same
doubles. `ScalarNode` is a symbolic number with a concrete value (its hint): arithmetic is recorded
as `operator.*` nodes, and a comparison is answered with the hint and noted as a guard, so that the
program is traced again when the answer would change.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.errors import OptimizerError
from pantile.program.nodes import new_call
from pantile.program.spec import Guard


class ScalarTape:
    """The graph that scalar arithmetic is written to, and the guards it left."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.guards: dict[str, Guard] = {}
        self._known: dict[Any, fx.Node] = {}

    def call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        """Record an operation; the same one on the same operands is recorded once."""
        key = (function, args)
        if key not in self._known:
            node = new_call(self.graph, function, args)
            self._known[key] = node
        return self._known[key]

    def guard(self, node: fx.Node, taken: bool) -> None:
        """Remember which way a comparison went."""
        self.guards[node.name] = Guard(node.name, taken)


@dataclass(eq=False)
class ScalarNode:
    """The node protocol of `torch.SymFloat`, for a number with a tape."""

    tape: ScalarTape
    value: fx.Node | float
    hint: float | None

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def maybe_as_float(self) -> float | None:
        return None

    def maybe_as_int(self) -> int | None:
        return None

    def wrap_float(self, number: float) -> ScalarNode:
        return ScalarNode(self.tape, number, number)

    def wrap_int(self, number: int) -> ScalarNode:
        return ScalarNode(self.tape, number, number)

    def guard_float(self, file: str, line: int) -> float:
        """A C function wants the number itself: this program then holds for this value only."""
        if self.hint is None:
            raise _unknown()
        self._compare(operator.eq, self.wrap_float(self.hint))
        return self.hint

    def _apply(self, function: Callable[..., Any], *others: ScalarNode) -> ScalarNode:
        hints = [self.hint, *(other.hint for other in others)]
        hint = None if None in hints else function(*hints)
        node = self.tape.call(function, self.value, *(other.value for other in others))
        node.meta.setdefault("val", 0.0 if hint is None else hint)
        return ScalarNode(self.tape, node, hint)

    def _compare(self, function: Callable[..., Any], other: ScalarNode) -> _Answer:
        if self.hint is None or other.hint is None:
            raise _unknown()
        taken = bool(function(self.hint, other.hint))
        node = self.tape.call(function, self.value, other.value)
        node.meta.setdefault("val", taken)
        self.tape.guard(node, taken)
        return _Answer(taken)

    def add(self, other: ScalarNode) -> ScalarNode:
        return self._apply(operator.add, other)

    def sub(self, other: ScalarNode) -> ScalarNode:
        return self._apply(operator.sub, other)

    def mul(self, other: ScalarNode) -> ScalarNode:
        return self._apply(operator.mul, other)

    def truediv(self, other: ScalarNode) -> ScalarNode:
        return self._apply(operator.truediv, other)

    def pow(self, other: ScalarNode) -> ScalarNode:
        return self._apply(operator.pow, other)

    float_truediv = truediv
    float_pow = pow

    def neg(self) -> ScalarNode:
        return self._apply(operator.neg)

    def sym_min(self, other: ScalarNode) -> ScalarNode:
        return self._apply(min, other)

    def sym_max(self, other: ScalarNode) -> ScalarNode:
        return self._apply(max, other)

    def eq(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.eq, other)

    def ne(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.ne, other)

    def lt(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.lt, other)

    def le(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.le, other)

    def gt(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.gt, other)

    def ge(self, other: ScalarNode) -> _Answer:
        return self._compare(operator.ge, other)

    # Last, because after it `str` names this method in the class.
    def str(self) -> builtins.str:
        return builtins.str(self.value)


@dataclass(frozen=True)
class _Answer:
    """The node protocol of `torch.SymBool`, for a comparison whose answer is known."""

    value: bool

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return True

    def maybe_as_bool(self) -> bool:
        return self.value

    def bool_(self) -> bool:
        return self.value

    def guard_bool(self, file: str, line: int) -> bool:
        return self.value


def _closed(name: str) -> Any:
    """An operator of `torch.SymFloat` whose result is a Scalar again, with its rule for powers."""
    operation: Any = getattr(torch.SymFloat, name)

    def method(self: Any, *others: Any) -> Any:
        return _as_scalar(operation(self, *others))

    return method


class Scalar(torch.SymFloat):
    """A recorded number. Powers follow Python's own rule instead of branching on the sign."""

    def __init__(self, node: ScalarNode) -> None:
        super().__init__(node)  # type: ignore[no-untyped-call]

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return Scalar(self.node.pow(_node_of(self, other)))

    def __rpow__(self, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return Scalar(_node_of(self, other).pow(self.node))

    __add__ = _closed("__add__")
    __radd__ = _closed("__radd__")
    __sub__ = _closed("__sub__")
    __rsub__ = _closed("__rsub__")
    __mul__ = _closed("__mul__")
    __rmul__ = _closed("__rmul__")
    __truediv__ = _closed("__truediv__")
    __rtruediv__ = _closed("__rtruediv__")
    __neg__ = _closed("__neg__")


def _as_scalar(value: Any) -> Any:
    return Scalar(value.node) if type(value) is torch.SymFloat else value


def _node_of(like: torch.SymFloat, value: Any) -> ScalarNode:
    if isinstance(value, torch.SymFloat):
        node: ScalarNode = value.node
        return node
    wrapped: ScalarNode = like.node.wrap_float(float(value))
    return wrapped


def symbolic_max(*values: Any) -> Any:
    """`max` that records instead of comparing when a value is only known at run time."""
    return _fold(values, max, "sym_max")


def symbolic_min(*values: Any) -> Any:
    """`min` that records instead of comparing when a value is only known at run time."""
    return _fold(values, min, "sym_min")


def _fold(values: tuple[Any, ...], plain: Callable[..., Any], method: str) -> Any:
    symbols = [v for v in values if isinstance(v, torch.SymFloat)]
    if not symbols:
        return plain(*values)
    nodes = [_node_of(symbols[0], v) for v in values]
    result = nodes[0]
    for node in nodes[1:]:
        result = getattr(result, method)(node)
    return Scalar(result)


def _unknown() -> OptimizerError:
    return OptimizerError(
        "the optimizer's step() branches in Python on a value computed on the device",
        fix="write the choice with torch.where, or use an optimizer of torch.optim",
    )
