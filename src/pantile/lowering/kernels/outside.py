"""Operators that ATen computes, in the middle of a program of ours.

    kernels ── memory, as it lies ──▶ an operator of torch's ── its own memory ──▶ kernels

Such an operator is one node for each result that is used, with the target `outside`:

    %a, %b = linalg.eigh(%x)      ->      %a = outside(call, 0, %x);  %b = outside(call, 1, %a)

The first one makes the call, the others only name what it made. An operator without results, such
as a check, is one node.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.refused import Refused


def outside(*_: Any) -> None:
    """A result of an operator of torch's: (call, number of the result, operands…)."""


@dataclass(frozen=True, eq=False)
class OutsideCall:
    """A call of an operator."""

    node: fx.Node
    """The node of the program that was left as it is: operator, arguments."""
    places: tuple[int | None, ...]
    """Which of its results are used; None is the only one."""

    @property
    def acts(self) -> bool:
        """Is it called for what it does, not for a result?"""
        return not self.places


def operands_of(node: fx.Node) -> list[fx.Node]:
    """The tensors among the arguments of a node, in their order."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def is_outside(node: Any) -> bool:
    """Is it a result of torch's?"""
    return isinstance(node, fx.Node) and node.target is outside


def call_of(node: fx.Node) -> OutsideCall:
    """The call that a result belongs to."""
    call: Any = node.args[0]
    assert isinstance(call, OutsideCall)
    return call


def makes_call(node: fx.Node) -> bool:
    """Is it the first result of a call?"""
    others: Any = node.args[2:3]
    return not any(is_outside(other) and call_of(other) is call_of(node) for other in others)


def is_effect(node: fx.Node) -> bool:
    """Is it called for what it does, though nobody reads it?"""
    return is_outside(node) and call_of(node).acts


def results_of(node: fx.Node) -> list[fx.Node]:
    """All results of a call, by the first one."""
    if is_effect(node):
        return []
    others = (user for user in node.users if is_outside(user) and call_of(user) is call_of(node))
    return [node, *sorted(others)]


def write_outside(graph: fx.Graph, node: fx.Node, became: Mapping[fx.Node, Any]) -> Any:
    """Write down a call of a node; what its results are in the graph."""
    operands = [became[operand] for operand in operands_of(node)]
    if not all(isinstance(operand, fx.Node) for operand in operands):
        raise Refused(f"{node.target} of several values", {node: "an operand is no tensor"})
    known = node.meta["val"]
    if isinstance(known, torch.Tensor):
        call = OutsideCall(node, (None,))
        return _result(graph, call, (None, *operands), known)
    if known is None:
        return _result(graph, OutsideCall(node, ()), (None, *operands), None)
    if any(user.target is not operator.getitem for user in node.users):
        raise Refused(f"{node.target} whose results are used together")
    places = sorted({int(user.args[1]) for user in node.users})  # type: ignore[arg-type]
    call = OutsideCall(node, tuple(places))
    made: dict[int, fx.Node] = {}
    for place in places:
        given = [made[places[0]]] if made else operands
        made[place] = _result(graph, call, (place, *given), known[place])
    return [made.get(place) for place in range(len(known))]


def _result(graph: fx.Graph, call: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
    made = graph.call_function(outside, (call, *args))
    made.meta["val"] = value
    return made
