"""Which operators of a graph have no rule, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.expressions import RULES, storage_of
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.outside import is_outside
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.types import CPP

aten = torch.ops.aten

SEVERAL = frozenset({aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default})
"""Views with several results."""


def check_operators(nodes: Sequence[fx.Node], families: Mapping[Any, Family]) -> None:
    """Refuse a graph if an operator of it has no rule, with the names of all that have none."""
    found: dict[fx.Node, str] = {}
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        why = _why_refused(node, families)
        if why is not None:
            found[node] = why
    if found:
        raise Refused(next(iter(found.values())), found)


def check_outputs(outputs: Sequence[Any], written: Collection[Any]) -> None:
    """Refuse what is no value. Inputs that are written are returned as they become: not so here."""
    for output in outputs:
        if not isinstance(output, fx.Node):
            raise Refused("a result that is no tensor")
        if storage_of(output) in written:
            raise Refused("an input that is written and returned")


def _why_refused(node: fx.Node, families: Mapping[Any, Family]) -> str | None:
    if node.op != "call_function":
        return f"{node.op} {node.target}"
    family = families.get(node.target)
    known = node.target in RULES or node.target in SEVERAL or node.target is aten.copy_.default
    if not known and family is None:
        return f"no rule for {node.target}"
    if is_outside(node):
        return None
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in values):
        return f"{node.target} of no elements"
    odd = _odd_type(node)
    if odd is not None:
        return f"no rule for {node.target} of {odd}"
    try:
        if family is not None:
            family.check(node)
    except Refused as refusal:
        return str(refusal)
    return None


def _odd_type(node: fx.Node) -> torch.dtype | None:
    """A type of numbers that C++ has no name for here, of a node or an operand."""
    for one in (node, *node.all_input_nodes):
        value = one.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype not in CPP:
            return value.dtype
    return None
