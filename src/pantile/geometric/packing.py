"""`StreamPackingSampler`: as many graphs a batch as fit, in the order they come.

    limits: 3 graphs, 10 nodes          sizes 4 3 5 2 6 …   ─►   [4 3] [5 2] [6 …]

Graphs that are missing to the limit are padding, and each needs a node and an edge: a batch is
full when what is left would not do for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from pantile.errors import DataError, GraphOptionError, GraphSizeError


@dataclass
class _Pack:
    indices: list[int] = field(default_factory=list)
    nodes: int = 0
    edges: int = 0

    def add(self, index: int, graph: Any) -> None:
        self.indices.append(index)
        self.nodes += graph.num_nodes
        self.edges += graph.num_edges


class StreamPackingSampler(Sampler[list[int]]):
    """Batches of indices with at most so many graphs, nodes and edges.

    Without `max_num_nodes` or `max_num_edges` there is room for the biggest graphs of the dataset.
    A graph that does not fit into a batch of its own is an error, unless `allow_skip_data`.
    """

    def __init__(
        self,
        data_source: Any,
        max_num_graphs: int,
        max_num_nodes: int | None = None,
        max_num_edges: int | None = None,
        base_sampler: Sampler[int] | Iterable[int] | None = None,
        allow_skip_data: bool = False,
    ) -> None:
        _check_limits(max_num_graphs, max_num_nodes, max_num_edges)
        if base_sampler is not None and len(base_sampler) == 0:  # type: ignore[arg-type]
            raise GraphOptionError("base_sampler has no elements", fix="leave it out")
        self.data_source = data_source
        self.max_num_graphs = max_num_graphs
        self.max_num_nodes = max_num_nodes or max_num_graphs * _largest(data_source, "num_nodes")
        self.max_num_edges = max_num_edges or max_num_graphs * _largest(data_source, "num_edges")
        self.base_sampler = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.allow_skip_data = allow_skip_data

    def __iter__(self) -> Iterator[list[int]]:
        pack = _Pack()
        for index in self.base_sampler:
            graph = self.data_source[index]
            if pack.indices and not self._fits(pack, graph):
                yield pack.indices
                pack = _Pack()
            if self._fits(pack, graph):
                pack.add(index, graph)
            elif not self.allow_skip_data:
                raise GraphSizeError(
                    f"graph {index} with {graph.num_nodes} nodes and {graph.num_edges} edges is "
                    f"too large for a batch of {self.max_num_graphs} graphs, {self.max_num_nodes} "
                    f"nodes and {self.max_num_edges} edges",
                    fix="raise the sizes, or leave such graphs out with allow_skip_data=True "
                    "(OverSizeStrategy.Skip)",
                )
        if pack.indices:
            yield pack.indices

    def __len__(self) -> int:
        if isinstance(self.base_sampler, RandomSampler):
            raise DataError(
                "the number of packed batches depends on the order, which is random",
                fix="count while iterating, or pack without shuffling",
            )
        return self._length

    @cached_property
    def _length(self) -> int:
        return sum(1 for _ in self)

    def _fits(self, pack: _Pack, graph: Any) -> bool:
        padding = self.max_num_graphs - len(pack.indices) - 1
        nodes = self.max_num_nodes - pack.nodes - graph.num_nodes
        edges = self.max_num_edges - pack.edges - graph.num_edges
        return padding >= 0 and nodes >= padding and edges >= padding


def _largest(data_source: Any, attribute: str) -> int:
    sizes: Iterator[int] = (
        getattr(data_source[index], attribute) for index in range(len(data_source))
    )
    return max(sizes)


def _check_limits(graphs: Any, nodes: int | None, edges: int | None) -> None:
    if not isinstance(graphs, int) or graphs < 1:
        raise GraphOptionError(
            f"max_num_graphs={graphs!r} must be at least 1", fix="give the graphs of one batch"
        )
    for name, limit in (("max_num_nodes", nodes), ("max_num_edges", edges)):
        if limit is not None and limit < graphs:
            raise GraphOptionError(
                f"{name}={limit} is less than max_num_graphs={graphs}",
                fix="leave room for at least one in each graph",
            )
