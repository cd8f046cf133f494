"""New nodes in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def new_node(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: torch.Tensor) -> fx.Node:
    """A call whose value is like a tensor."""
    node = graph.call_function(target, args)
    node.meta["val"] = like
    return node


def reshaped(graph: fx.Graph, node: fx.Node, shape: Sequence[int]) -> fx.Node:
    """A value in another shape."""
    like = torch.empty(tuple(shape), dtype=node.meta["val"].dtype, device="meta")
    return new_node(graph, aten.reshape.default, (node, list(shape)), like)
