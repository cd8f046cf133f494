"""Graphs that hold nothing but padding, and the masks that tell them from real ones.

A padding graph has the attributes of a real one. Its edges lead from its first node to itself, so
no message reaches a real node.

    level    attribute                              in a padding graph
    node     first dimension: number of nodes       one row a node, of node_pad_value
    edge     edge_index, or number of edges         one row an edge, of edge_pad_value
    graph    any other tensor                       the same shape, of graph_pad_value
    plain    not a tensor                           pad_graph_defaults, or that of the first graph
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch_geometric.data import HeteroData

from pantile.geometric.sizes import FixedSizeOptions, edge_counts, node_counts

Key = tuple[Any, str]  # type of node or edge (None: the graph), name of the attribute


class Level(Enum):
    """What an attribute belongs to."""

    NODE = 0
    EDGE = 1
    GRAPH = 2
    PLAIN = 3  # not a tensor


@dataclass
class Levels:
    """What each attribute belongs to, by its size in all graphs seen so far.

    In one batch the size of a graph's attribute may happen to be its number of nodes. What was
    once seen to be of another size stays excluded.
    """

    _excluded: dict[Key, set[Level]] = field(default_factory=dict)

    def learn(self, graphs: Iterable[Any]) -> None:
        """Take note of the sizes."""
        for graph in graphs:
            for store in graph.stores:
                kind = store._key
                for name, value in store.items():
                    excluded = self._excluded.setdefault((kind, name), set())
                    excluded |= _impossible(graph, store, name, value)

    def of(self, kind: Any, name: str) -> Level:
        """The level of an attribute."""
        excluded = self._excluded[kind, name]
        return next(level for level in _order(name) if level not in excluded)


def _order(name: str) -> tuple[Level, ...]:
    if name == "y":
        return (Level.NODE, Level.GRAPH, Level.PLAIN)
    if "edge" in name:
        return (Level.EDGE, Level.NODE, Level.GRAPH, Level.PLAIN)
    return (Level.NODE, Level.EDGE, Level.GRAPH, Level.PLAIN)


def _impossible(graph: Any, store: Any, name: str, value: Any) -> set[Level]:
    if not isinstance(value, torch.Tensor):
        return {Level.NODE, Level.EDGE, Level.GRAPH}
    size = None if value.dim() == 0 else value.shape[graph.__cat_dim__(name, value, store)]
    excluded = {Level.PLAIN}
    if size != _count(store, "num_nodes"):
        excluded.add(Level.NODE)
    if size != _count(store, "num_edges"):
        excluded.add(Level.EDGE)
    return excluded


def _count(store: Any, name: str) -> int | None:
    """The number of nodes or edges of a store, if it is of a kind that has them."""
    if isinstance(store._parent(), HeteroData):
        kind = store._key
        has_nodes = kind is not None and not isinstance(kind, tuple)
        if (name == "num_nodes") != has_nodes or kind is None:
            return None
    return getattr(store, name, None)


def padding_graphs(
    like: Any,
    count: int,
    nodes: dict[Any, int],
    edges: dict[Any, int],
    levels: Levels,
    options: FixedSizeOptions,
) -> list[Any]:
    """`count` graphs with the attributes of `like` that share these nodes and edges evenly."""
    shares = [_share(nodes, count, index) for index in range(count)]
    # An edge needs a node at both ends, and only the first graphs may have any.
    with_nodes = max(1, sum(1 for share in shares if all(share.values())))
    graphs = []
    for index, share in enumerate(shares):
        empty = dict.fromkeys(edges, 0)
        own = _share(edges, with_nodes, index) if index < with_nodes else empty
        graphs.append(_padding_graph(like, share, own, levels, options))
    return graphs


def _share(amounts: dict[Any, int], pieces: int, index: int) -> dict[Any, int]:
    """Piece `index` of each amount, which are divided as evenly as possible."""
    return {kind: amount // pieces + (index < amount % pieces) for kind, amount in amounts.items()}


def _padding_graph(
    like: Any,
    nodes: dict[Any, int],
    edges: dict[Any, int],
    levels: Levels,
    options: FixedSizeOptions,
) -> Any:
    graph = copy.copy(like)
    for store in graph.stores:
        kind = store._key
        for name, value in list(store.items()):
            level = levels.of(kind, name)
            if level is Level.PLAIN:
                store[name] = _plain(name, value, nodes.get(kind), options)
            elif level is Level.GRAPH:
                store[name] = torch.full_like(value, _as(value, options.graph_pad_value))
            else:
                of_nodes = level is Level.NODE
                size = (nodes if of_nodes else edges)[kind]
                fill = options.node_pad_value if of_nodes else options.edge_pad_value
                if name == "edge_index":
                    fill = 0  # the first node; batching adds the number of nodes before it
                shape = list(value.shape)
                shape[graph.__cat_dim__(name, value, store)] = size
                store[name] = value.new_full(shape, _as(value, fill))
    return graph


def _as(value: torch.Tensor, fill: float) -> Any:
    """A fill value of the tensor's kind: integer tensors do not take 0.0."""
    if value.dtype == torch.bool:
        return bool(fill)
    return fill if value.is_floating_point() or value.is_complex() else int(fill)


def _plain(name: str, value: Any, nodes: int | None, options: FixedSizeOptions) -> Any:
    if name == "num_nodes":
        return nodes
    return options.pad_graph_defaults.get(name, value)


def add_masks(batch: Any, real_graphs: int, graphs: Sequence[Any]) -> None:
    """Attach `graphs_mask`, and `nodes_mask` and `edges_mask` for each type: True is real."""
    batch.graphs_mask = torch.arange(len(graphs)) < real_graphs
    for name, counts in (("nodes_mask", node_counts), ("edges_mask", edge_counts)):
        sizes = [counts(graph) for graph in graphs]
        for kind in sizes[0]:
            real = sum(size[kind] for size in sizes[:real_graphs])
            total = sum(size[kind] for size in sizes)
            store = batch if kind is None else batch[kind]
            store[name] = torch.arange(total) < real
