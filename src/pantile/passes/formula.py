"""Formulas on nodes: `(1 - beta**step) * gradient` writes the calls that compute it.

A term is a tensor, or a number that was recorded. Numbers are 0-d tensors of float64, as precise
as Python's own; where one meets a tensor it is rounded to the type the tensor is computed in, as
torch's kernels do with a Python number.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
from torch import fx

from pantile.passes.node_writer import NodeWriter

aten = torch.ops.aten

NUMBER = torch.float64
_NARROW = frozenset({torch.float16, torch.bfloat16})

Operand: TypeAlias = "Term | float"
"""A `Term`, or a Python number written in the program."""


class Formulas:
    """Makes terms whose operators write to one graph."""

    def __init__(self, writer: NodeWriter) -> None:
        self.writer = writer
        self._casts: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}

    def number(self, node: fx.Node) -> Term:
        """A recorded number."""
        return Term(self, node, is_number=True)

    def tensor(self, node: fx.Node, dtype: torch.dtype | None = None) -> Term:
        """A tensor, computed with in another type if one is given."""
        return Term(self, self.cast(node, dtype or dtype_of(node)))

    def literal(self, value: float, dtype: torch.dtype) -> Term:
        """A 0-d tensor of a number that is written in the program."""
        node = self.writer.call(aten.full.default, [], value, dtype=dtype)
        return Term(self, node, is_number=dtype is NUMBER)

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A node in another type; the same cast is written once."""
        if dtype_of(node) is dtype:
            return node
        key = (node, dtype)
        if key not in self._casts:
            self._casts[key] = self.writer.call(aten._to_copy.default, node, dtype=dtype)
        return self._casts[key]


class Term:
    """One value of a formula."""

    def __init__(self, formulas: Formulas, node: fx.Node, *, is_number: bool = False) -> None:
        self._formulas = formulas
        self.node = node
        self.is_number = is_number

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.node)

    @property
    def shape(self) -> torch.Size:
        shape: torch.Size = self.node.meta["val"].shape
        return shape

    def to(self, dtype: torch.dtype) -> Term:
        """The term in another type; it is no number any more."""
        return Term(self._formulas, self._formulas.cast(self.node, dtype))

    def call(self, target: Any, *others: Any, **kwargs: Any) -> Term:
        """An op on this term and others, numbers among them rounded to the type of the tensors."""
        operands = (self, *others)
        tensors = [o.dtype for o in operands if isinstance(o, Term) and not o.is_number]
        meets = tensors[0].to_real() if tensors else NUMBER
        args = [_node_of(operand, meets) for operand in operands]
        node = self._formulas.writer.call(target, *args, **kwargs)
        return Term(self._formulas, node, is_number=not tensors)

    def part(self, target: Any, index: int, *others: Any, **kwargs: Any) -> Term:
        """One of the results of an op that returns several."""
        several = self.call(target, *others, **kwargs)
        node = self._formulas.writer.call(operator.getitem, several.node, index)
        return Term(self._formulas, node)

    def beside(self, value: Operand) -> Term:
        """A literal as a term of this one's type."""
        if isinstance(value, Term):
            return value
        return self._formulas.literal(value, self.dtype)

    def __add__(self, other: Operand) -> Term:
        return self.call(aten.add.Tensor, other)

    def __sub__(self, other: Operand) -> Term:
        return self.call(aten.sub.Tensor, other)

    def __rsub__(self, other: float) -> Term:
        return self.call(aten.rsub.Scalar, other)

    def __mul__(self, other: Operand) -> Term:
        return self.call(aten.mul.Tensor, other)

    def __truediv__(self, other: Operand) -> Term:
        return self.call(aten.div.Tensor, other)

    def __rtruediv__(self, other: float) -> Term:
        return self.beside(other) / self

    def __pow__(self, other: Operand) -> Term:
        if isinstance(other, Term):
            return self.call(aten.pow.Tensor_Tensor, other)
        return self.call(aten.pow.Tensor_Scalar, other)

    def __rpow__(self, other: float) -> Term:
        node = self._formulas.writer.call(aten.pow.Scalar, other, self.node)
        return Term(self._formulas, node, is_number=self.is_number)

    def __neg__(self) -> Term:
        return self.call(aten.neg.default)

    def sqrt(self) -> Term:
        return self.call(aten.sqrt.default)

    __radd__ = __add__
    __rmul__ = __mul__


def _node_of(operand: Any, meets: torch.dtype) -> Any:
    """An argument of an op whose tensors are of the type that a number `meets`."""
    if not isinstance(operand, Term):
        return operand
    return operand.to(meets).node if operand.is_number else operand.node


def dtype_of(node: fx.Node) -> torch.dtype:
    """The type of a node's tensor."""
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type torch computes in for results of this one: halves are computed in float32."""
    return torch.float32 if dtype in _NARROW else dtype
