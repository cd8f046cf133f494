"""Leave out nodes or edges of graphs that are too big for a batch, at random.

Every graph keeps at least one of each type it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import HeteroData

from pantile.errors import GraphSizeError
from pantile.geometric.sizes import edge_counts, node_counts


def trim_nodes(graphs: Sequence[Any], limits: dict[Any, int]) -> list[Any]:
    """The graphs with at most so many nodes of each type together, and the edges between them."""
    keep = _choose([node_counts(graph) for graph in graphs], limits, "nodes")
    return [graph.subgraph(_mask(graph, masks)) for graph, masks in zip(graphs, keep, strict=True)]


def trim_edges(graphs: Sequence[Any], limits: dict[Any, int]) -> list[Any]:
    """The graphs with at most so many edges of each type together."""
    keep = _choose([edge_counts(graph) for graph in graphs], limits, "edges")
    pairs = zip(graphs, keep, strict=True)
    return [graph.edge_subgraph(_mask(graph, masks)) for graph, masks in pairs]


def _mask(graph: Any, masks: dict[Any, torch.Tensor]) -> Any:
    return masks if isinstance(graph, HeteroData) else masks[None]


def _choose(
    sizes: Sequence[dict[Any, int]], limits: dict[Any, int], what: str
) -> list[dict[Any, torch.Tensor]]:
    """For each graph and type, a mask of what it keeps."""
    chosen: list[dict[Any, torch.Tensor]] = [{} for _ in sizes]
    for kind in sizes[0]:
        parts = _choose_of_type([size[kind] for size in sizes], limits.get(kind), what)
        for masks, part in zip(chosen, parts, strict=True):
            masks[kind] = part
    return chosen


def _choose_of_type(sizes: list[int], limit: int | None, what: str) -> list[torch.Tensor]:
    total = sum(sizes)
    keep = torch.ones(total, dtype=torch.bool)
    if limit is None or total <= limit:
        return list(torch.split(keep, sizes))
    protected = torch.zeros(total, dtype=torch.bool)
    start = 0
    for size in sizes:
        if size:
            protected[start + int(torch.randint(size, ()))] = True
        start += size
    removable = (~protected).nonzero().flatten()
    surplus = total - limit
    if surplus > len(removable):
        raise GraphSizeError(
            f"{total} {what} of {len(sizes)} graphs cannot be trimmed to {limit}: each graph keeps "
            "at least one",
            fix="allow more, or fewer graphs a batch",
        )
    keep[removable[torch.randperm(len(removable))[:surplus]]] = False
    return list(torch.split(keep, sizes))
