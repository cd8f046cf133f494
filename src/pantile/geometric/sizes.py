"""How big a batch of graphs is: `FixedSizeOptions`, and what to do with graphs that do not fit.

    graph 0 │ graph 1 │ … │ padding graph        num_graphs
    nodes of all graphs   │ padding nodes        num_nodes   (one number for each type of node)
    edges of all graphs   │ padding edges        num_edges   (one number for each type of edge)

A static graph has one shape. So every batch is filled up to the same numbers, with graphs that
masks tell apart from real ones. Room for one padding graph with one node and edge is always kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from torch_geometric.data import HeteroData
from tqdm import tqdm

from pantile.errors import GraphOptionError

Count = int | dict[Any, int]
_SHOW_PROGRESS = 10_000


class FixedSizeStrategy(Enum):
    """How batches of one size are made."""

    PadToMax = 0
    """A fixed number of graphs a batch, and padding for the biggest possible batch."""
    StreamPack = 1
    """As many graphs as fit, one after the other."""


class OverSizeStrategy(Enum):
    """What happens to graphs that do not fit."""

    Error = 0
    Skip = 1
    TrimNodes = 2
    TrimEdges = 3
    TrimNodesAndEdges = 4

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes are left out at random until the rest fits."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges are left out at random until the rest fits."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)


class FixedSizeOptions:
    """The size every batch is filled up to, and the values it is filled with.

    `num_nodes`, `num_edges` and `num_graphs` include the padding. Without `num_edges` there is
    room for complete graphs, n · (n - 1). For heterogeneous data the numbers may be dicts by type;
    one number is the size of each type. `pad_graph_defaults` are the values of attributes of
    padding graphs that are not tensors.
    """

    def __init__(
        self,
        num_nodes: Count,
        num_edges: Count | None = None,
        num_graphs: int = 2,
        node_pad_value: float | None = None,
        edge_pad_value: float | None = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        check_num_graphs(num_graphs)
        _check_count("num_nodes", num_nodes)
        if num_edges is None:
            nodes = _total(num_nodes)
            num_edges = nodes * (nodes - 1)
        _check_count("num_edges", num_edges)
        self.num_nodes = num_nodes
        self.num_edges = num_edges
        self.num_graphs = num_graphs
        self.node_pad_value = 0.0 if node_pad_value is None else node_pad_value
        self.edge_pad_value = 0.0 if edge_pad_value is None else edge_pad_value
        self.graph_pad_value = 0.0 if graph_pad_value is None else graph_pad_value
        self.pad_graph_defaults = dict(pad_graph_defaults or {})

    def is_hetero(self) -> bool:
        """Whether there is a number for each type of node and edge."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Sequence[Any], edge_types: Sequence[Any]) -> FixedSizeOptions:
        """Use numbers that are the same for all types for each of these; returns itself."""
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return _total(self.num_nodes)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        return _total(self.num_edges)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
    ) -> FixedSizeOptions:
        """Sizes in which any `batch_size - 1` graphs of the dataset, and a padding graph, fit.

        With `sample_limit` only so many graphs are looked at, and bigger ones may follow.
        """
        check_num_graphs(batch_size)
        count = len(dataset) if sample_limit is None else min(sample_limit, len(dataset))
        if progress_bar is None:
            progress_bar = count >= _SHOW_PROGRESS
        graphs = (dataset[index] for index in range(count))
        seen = tqdm(graphs, "sizes of graphs", count, leave=False, disable=not progress_bar)
        nodes, edges, _ = _largest(seen)
        return cls(
            num_nodes=_each(nodes, lambda size: size * (batch_size - 1) + 1),
            num_edges=_each(edges, lambda size: size * (batch_size - 1) + 1),
            num_graphs=batch_size,
        )

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000) -> FixedSizeOptions:
        """Sizes for the batches of a loader, going by `sample_limit` of them.

        The loader is begun anew as often as needed. Other batches may be bigger.
        """
        nodes, edges, graphs = _largest(islice(_again_and_again(loader), sample_limit))
        return cls(
            num_nodes=_each(nodes, lambda size: size + 1),
            num_edges=_each(edges, lambda size: size + 1),
            num_graphs=graphs + 1,
        )

    def __repr__(self) -> str:
        return (
            f"FixedSizeOptions(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"num_graphs={self.num_graphs}, node_pad_value={self.node_pad_value}, "
            f"edge_pad_value={self.edge_pad_value}, graph_pad_value={self.graph_pad_value}, "
            f"pad_graph_defaults={self.pad_graph_defaults}); one graph, node and edge of each "
            "type are kept for padding"
        )


def check_num_graphs(num_graphs: int) -> None:
    """Raise unless there is room for a graph and its padding."""
    if num_graphs < 2:
        raise GraphOptionError(
            f"a batch of {num_graphs} graph(s) has no room for a real graph and a padding graph",
            fix="use at least 2; the number includes the padding graph",
        )


def _check_count(name: str, count: Count) -> None:
    sizes = count.values() if isinstance(count, dict) else [count]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or not sizes:
        raise GraphOptionError(
            f"{name}={count!r} must be a number, or a dict with a number for each type",
            fix="FixedSizeOptions.from_dataset(dataset, batch_size) finds sizes that fit",
        )


def _total(count: Count) -> int:
    return sum(count.values()) if isinstance(count, dict) else count


def _each(count: Count, change: Any) -> Count:
    if isinstance(count, dict):
        return {kind: change(size) for kind, size in count.items()}
    return change(count)  # type: ignore[no-any-return]


def _largest(items: Iterable[Any]) -> tuple[Count, Count, int]:
    """The largest numbers of nodes, edges and graphs of any item."""
    nodes: dict[Any, int] = {}
    edges: dict[Any, int] = {}
    graphs = 0
    is_hetero = False
    for item in items:
        is_hetero = isinstance(item, HeteroData)
        for kind, size in node_counts(item).items():
            nodes[kind] = max(nodes.get(kind, 0), size)
        for kind, size in edge_counts(item).items():
            edges[kind] = max(edges.get(kind, 0), size)
        graphs = max(graphs, getattr(item, "num_graphs", 1))
    if not nodes:
        raise GraphOptionError(
            "there is no graph to take sizes from", fix="give a dataset or loader with graphs in it"
        )
    if is_hetero:
        return nodes, edges, graphs
    return nodes[None], edges[None], graphs


def node_counts(data: Any) -> dict[Any, int]:
    """The number of nodes of each type; the only type of homogeneous data is None."""
    if isinstance(data, HeteroData):
        return {kind: data[kind].num_nodes for kind in data.node_types}
    return {None: data.num_nodes}


def edge_counts(data: Any) -> dict[Any, int]:
    """The number of edges of each type; the only type of homogeneous data is None."""
    if isinstance(data, HeteroData):
        return {kind: data[kind].num_edges for kind in data.edge_types}
    return {None: data.num_edges}


def by_type(count: Count, kinds: Iterable[Any]) -> dict[Any, int]:
    """A size for each of the types."""
    if isinstance(count, dict):
        return {kind: count[kind] for kind in kinds if kind in count}
    return dict.fromkeys(kinds, count)


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        count = 0
        for item in loader:
            count += 1
            yield item
        if count == 0:
            return
