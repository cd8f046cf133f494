"""Values of a graph that are made of constant inputs alone.

    1 / sqrt(variance + eps)      of a batch norm: a root and a division for each channel, once
    normalised * weight           not constant

Computed where they are used, the dear ones would be computed for each pixel. With memory of their
own they are written by a kernel of the setup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import fx

from pantile.lowering.kernels.costs import DEAR
from pantile.lowering.kernels.expressions import is_view
from pantile.lowering.kernels.pointwise import COSTS, POINTWISE


def constant_nodes(nodes: Sequence[fx.Node], inputs: Collection[fx.Node]) -> frozenset[fx.Node]:
    """The values that are the same in every run; none if no input is constant."""
    found = set(inputs)
    for node in nodes if inputs else ():
        if node.op == "call_function" and found.issuperset(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def worth_memory(nodes: Sequence[fx.Node], constant: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The last constant values on the way to others, if they are dear to compute."""
    costs: dict[fx.Node, float] = {}
    for node in nodes:
        if node not in constant or (node.target not in POINTWISE and not is_view(node)):
            continue
        costs[node] = sum(costs.get(other, 0.0) for other in node.all_input_nodes)
        costs[node] += 0.0 if is_view(node) else 1.0 + COSTS.get(node.target, 0.0)
        value = node.meta.get("val")
        several = isinstance(value, torch.Tensor) and value.numel() > 1
        if several and not is_view(node) and costs[node] > DEAR and _leaves(node, constant):
            yield node


def _leaves(node: fx.Node, constant: Collection[fx.Node]) -> bool:
    """Does a value that is not constant need it?"""
    return any(
        user not in constant or (is_view(user) and _leaves(user, constant)) for user in node.users
    )
