"""Nodes of a graph: new ones, and what the arguments of some say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def pieces_of(cat: fx.Node) -> tuple[int, list[tuple[fx.Node, int]]]:
    """The dim of a concatenation, and its pieces with the places where they start."""
    values: Any = cat.args[0]
    dim: Any = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    dim %= cat.meta["val"].dim()
    starts = accumulate((int(value.meta["val"].shape[dim]) for value in values), initial=0)
    return dim, list(zip(values, starts, strict=False))


def slice_of(
    arguments: Sequence[Any], named: Mapping[str, Any], shape: Sequence[int]
) -> tuple[int, int, int]:
    """Dim, start and step of a slice; the arguments are those from `dim` on."""
    given = dict(zip(("dim", "start", "end", "step"), arguments, strict=False)) | dict(named)
    dim = given.get("dim", 0) % len(shape)
    start, size = given.get("start") or 0, shape[dim]
    start = max(0, min(size, start + size if start < 0 else start))
    return dim, start, given.get("step", 1)


def new_node(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: torch.Tensor) -> fx.Node:
    """A call whose value is like a tensor."""
    node = graph.call_function(target, args)
    node.meta["val"] = like
    return node


def as_type_of(graph: fx.Graph, node: fx.Node, like: torch.Tensor) -> fx.Node:
    """A value in the type of a tensor."""
    if node.meta["val"].dtype is like.dtype:
        return node
    convert = torch.ops.prims.convert_element_type.default
    return new_node(graph, convert, (node, like.dtype), like)


def reshaped(graph: fx.Graph, node: fx.Node, shape: Sequence[int]) -> fx.Node:
    """A value in another shape."""
    like = torch.empty(tuple(shape), dtype=node.meta["val"].dtype, device="meta")
    return new_node(graph, aten.reshape.default, (node, list(shape)), like)
