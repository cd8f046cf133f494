"""What an operator costs, estimated from shapes: floating-point operations and bytes moved.

Products and convolutions by torch's own formulas (`torch.utils.flop_counter`); anything else that
computes counts one operation per element of its result, or of its largest operand if it reduces.
Views cost nothing. These are estimates to compare stages by, not to predict times with.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from pantile.program.aliases import viewed
from pantile.program.program import WRITE


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


def cost_of(nodes: Iterable[fx.Node]) -> Cost:
    """The cost of some nodes together."""
    total = Cost()
    for node in nodes:
        total += node_cost(node)
    return total


def node_cost(node: fx.Node) -> Cost:
    """The cost of one node; none for views, parts and placeholders."""
    if node.op != "call_function" or node.target is operator.getitem:
        return Cost()
    if node.target is not WRITE and viewed(node):
        return Cost()
    read = [t for source in node.all_input_nodes for t in tensors_of(source)]
    written = list(tensors_of(node))
    moved = sum(map(size_of, (*read, *written)))
    formula = _formula(node)
    if formula is None:
        return Cost(max((t.numel() for t in (*read, *written)), default=0), moved)
    return Cost(formula, moved)


def tensors_of(node: fx.Node) -> Iterable[torch.Tensor]:
    """The tensors a node's value consists of."""
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def size_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _formula(node: fx.Node) -> int | None:
    """What torch's own formula says, if it has one."""
    from torch.utils.flop_counter import flop_registry

    if not isinstance(node.target, OpOverload):
        return None
    formula: Any = flop_registry.get(node.target._overloadpacket)
    if formula is None:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return int(formula(*args, **kwargs, out_val=node.meta.get("val")))
