"""Make one batch of a list of graphs: of fixed size, or several for one call of an executor.

[g0, g1]              FixedSizeCollater   ─►  Batch(g0, g1, padding), always the same shapes
[g0, g1, g2, g3, …]   CombinedBatching    ─►  such batches, joined along dim 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch_geometric.data import Batch
from torch_geometric.data.data import BaseData

from pantile.data.combine import join
from pantile.errors import DataArgumentError, GraphSizeError, combined
from pantile.geometric.padding import Levels, add_masks, padding_graphs
from pantile.geometric.sizes import (
    FixedSizeOptions,
    OverSizeStrategy,
    by_type,
    edge_counts,
    node_counts,
)
from pantile.geometric.trimming import trim_edges, trim_nodes

Names = Sequence[str] | None
Collate = Callable[[list[Any]], Any]


def make_exclude_keys(include_keys: Iterable[str], data: Any) -> tuple[str, ...]:
    """The attributes of `data` other than those."""
    return tuple(set(data.keys()) - set(include_keys))


class PlainCollater:
    """Collate graphs as PyG does, whatever their sizes."""

    def __init__(self, follow_batch: Names = None, exclude_keys: Names = None) -> None:
        self.follow_batch = list(follow_batch or ())
        self.exclude_keys = list(exclude_keys or ())

    def __call__(self, graphs: list[Any]) -> Any:
        _check_graphs(graphs)
        return Batch.from_data_list(graphs, self.follow_batch, self.exclude_keys)


class FixedSizeCollater(PlainCollater):
    """Collate graphs into a batch that always has the sizes of `fixed_size_options`.

    `add_masks_to_batch` attaches `graphs_mask`, `nodes_mask` and `edges_mask`, True for what is
    real. `trim_nodes` and `trim_edges` leave out nodes and edges at random if there are too many;
    otherwise that is an error.
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool = False,
        trim_nodes: bool = False,
        trim_edges: bool = False,
        follow_batch: Names = None,
        exclude_keys: Names = None,
    ) -> None:
        super().__init__(follow_batch, exclude_keys)
        self.fixed_size_options = fixed_size_options
        self.add_masks_to_batch = add_masks_to_batch
        self.trim_nodes = trim_nodes
        self.trim_edges = trim_edges
        self._levels = Levels()

    def __call__(self, graphs: list[Any]) -> Any:
        _check_graphs(graphs)
        options = self.fixed_size_options
        room = options.num_graphs - len(graphs)
        if room < 0:
            raise self._too_large(graphs)
        graphs = self._trimmed(graphs, room)
        nodes = _missing(options.num_nodes, [node_counts(graph) for graph in graphs])
        edges = _missing(options.num_edges, [edge_counts(graph) for graph in graphs])
        if min([*nodes.values(), *edges.values()], default=0) < 0:
            raise self._too_large(graphs)
        self._check_can_pad(graphs, room, nodes, edges)
        self._levels.learn(graphs)
        padding = padding_graphs(graphs[0], room, nodes, edges, self._levels, options)
        batch = super().__call__([*graphs, *padding])
        if self.add_masks_to_batch:
            add_masks(batch, len(graphs), [*graphs, *padding])
        return batch

    def _trimmed(self, graphs: list[Any], room: int) -> list[Any]:
        options = self.fixed_size_options
        if self.trim_nodes:
            nodes = [node_counts(graph) for graph in graphs]
            edges = [edge_counts(graph) for graph in graphs]
            # A padding graph needs a node of each type for its edges.
            limits = by_type(options.num_nodes, nodes[0])
            kept = {kind: limit - min(room, 1) for kind, limit in limits.items()}
            is_exact = not any(_missing(limits, nodes).values()) and not any(
                _missing(options.num_edges, edges).values()
            )
            if min(_missing(kept, nodes).values(), default=0) < 0 and not is_exact:
                graphs = trim_nodes(graphs, kept)
        if self.trim_edges:
            graphs = trim_edges(graphs, by_type(options.num_edges, edge_counts(graphs[0])))
        return graphs

    def _check_can_pad(
        self, graphs: list[Any], room: int, nodes: dict[Any, int], edges: dict[Any, int]
    ) -> None:
        if room == 0 and (any(nodes.values()) or any(edges.values())):
            raise GraphSizeError(
                f"the batch has {len(graphs)} graphs, as many as asked for: none is left for "
                f"{sum(nodes.values())} padding nodes and {sum(edges.values())} padding edges",
                fix="raise num_graphs by one, or pass one graph less",
            )
        for kind, count in edges.items():
            ends = (kind[0], kind[-1]) if isinstance(kind, tuple) else (None,)
            if count and not all(nodes.get(end, 0) for end in ends):
                raise GraphSizeError(
                    f"{count} padding edges have no padding node to belong to",
                    fix="raise num_nodes by one",
                )

    def _too_large(self, graphs: list[Any]) -> GraphSizeError:
        options = self.fixed_size_options
        has_nodes = sum(sum(node_counts(graph).values()) for graph in graphs)
        has_edges = sum(sum(edge_counts(graph).values()) for graph in graphs)
        return GraphSizeError(
            f"Graphs in the batch are too large: it may have {options.num_graphs} graphs, "
            f"{options.num_nodes} nodes and {options.num_edges} edges, and has {len(graphs)}, "
            f"{has_nodes} and {has_edges}",
            fix="raise the sizes (FixedSizeOptions.from_dataset finds them), or leave out what "
            "does not fit with an OverSizeStrategy",
        )


def padding_collater(
    sizes: FixedSizeOptions, over_size: OverSizeStrategy, masks: bool, follow: Names, exclude: Names
) -> FixedSizeCollater:
    """The collater of a loader that is told what becomes of graphs that do not fit."""
    return FixedSizeCollater(
        sizes,
        add_masks_to_batch=masks,
        trim_nodes=over_size.trims_nodes,
        trim_edges=over_size.trims_edges,
        follow_batch=follow,
        exclude_keys=exclude,
    )


class CombinedBatchingCollater:
    """Cut a list into pieces of `mini_batch_size`, collate each, and join them along dim 0.

    A call of an executor takes them apart again, one piece for each micro-batch. Without
    `mini_batch_size` the list is one piece.
    """

    def __init__(self, collater: Collate, mini_batch_size: int | None = None) -> None:
        self.collater = collater
        self.mini_batch_size = mini_batch_size

    def __call__(self, items: list[Any]) -> Any:
        size = self.mini_batch_size or len(items)
        if len(items) % size:
            raise DataArgumentError(
                f"Invalid batch size: {len(items)} graphs are not a multiple of {size}",
                fix="pass whole mini-batches, or drop the last one",
            )
        pieces = [list(items[start : start + size]) for start in range(0, len(items), size)]
        return join([self.collater(piece) for piece in pieces])


def _missing(wanted: Any, sizes: list[dict[Any, int]]) -> dict[Any, int]:
    """How many are missing of each type."""
    return {
        kind: size - sum(each[kind] for each in sizes)
        for kind, size in by_type(wanted, sizes[0]).items()
    }


def _check_graphs(graphs: Any) -> None:
    if not isinstance(graphs, list) or not graphs:
        raise combined(DataArgumentError, TypeError)(
            f"Expected list, got {type(graphs).__name__}." if graphs else "there are no graphs",
            fix="pass a list with at least one graph",
        )
    kinds = {type(graph) for graph in graphs}
    if len(kinds) > 1 or not isinstance(graphs[0], BaseData):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataArgumentError(
            f"graphs of one batch are of types {names}",
            fix="use a dataset of torch_geometric.data.Data, or of HeteroData",
        )
