"""Loaders that cut pieces out of one big graph and fill them up to one size.

PlainClusterLoader    clusters of the graph, several a batch
PlainNeighborLoader   some nodes and a sample of their neighbourhoods

Both let PyG's own loader make the piece, which is then padded as a batch of one graph. The loaders
`FixedSize…` do so for all micro-batches of a call.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch_geometric.data import HeteroData
from torch_geometric.loader import ClusterLoader, NeighborLoader
from torch_geometric.loader.utils import get_input_nodes

from pantile.data import DataLoader as CombiningLoader
from pantile.geometric.collate import (
    Collate,
    CombinedBatchingCollater,
    FixedSizeCollater,
    Names,
    padding_collater,
)
from pantile.geometric.loaders import check_mode
from pantile.geometric.sizes import FixedSizeOptions, OverSizeStrategy
from pantile.options import Options

_SEEDS = ("batch_size", "input_id")  # about the nodes a sample began with, not about the graph


class PlainClusterLoader(TorchLoader[Any]):
    """Batches of `batch_size` clusters of a `torch_geometric.loader.ClusterData`, of one size."""

    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        follow_batch: Names = None,
        exclude_keys: Names = None,
        **kwargs: Any,
    ) -> None:
        source = ClusterLoader(cluster_data, batch_size=batch_size)
        sizes = fixed_size_options or FixedSizeOptions.from_loader(source, len(source))
        self.fixed_size_options = sizes
        pad = padding_collater(sizes, over_size_strategy, add_pad_masks, follow_batch, exclude_keys)
        kwargs["collate_fn"] = self._item(_PaddedPiece(source._collate, pad, None), batch_size)
        rows: Any = range(len(cluster_data))
        super().__init__(dataset=rows, batch_size=batch_size, **kwargs)

    def _item(self, collate: Collate, rows: int) -> Collate:
        return collate


class FixedSizeClusterLoader(PlainClusterLoader, CombiningLoader):
    """The same for each micro-batch of a call; other arguments are `poptorch.DataLoader`'s."""

    def __init__(self, *args: Any, options: Options | None = None, **kwargs: Any) -> None:
        check_mode(kwargs)
        super().__init__(*args, options=options or Options(), **kwargs)

    def _item(self, collate: Collate, rows: int) -> Collate:
        return CombinedBatchingCollater(collate, rows)


class PlainNeighborLoader(TorchLoader[Any]):
    """Batches of `batch_size` nodes and samples of their neighbourhoods, of one size.

    The arguments up to `neighbor_sampler` are those of PyG's `NeighborLoader`, whose sampler needs
    pyg-lib or torch-sparse unless `neighbor_sampler` is given. The sampled nodes come first in the
    batch, as in PyG: `batch.batch_size` of them are those the loader was asked for. Without
    `fixed_size_options` the sizes of some samples are taken.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        neighbor_sampler: Any = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = True,
        follow_batch: Names = None,
        exclude_keys: Names = None,
        **kwargs: Any,
    ) -> None:
        known = inspect.signature(NeighborLoader.__init__).parameters
        sampling = {name: kwargs.pop(name) for name in list(kwargs) if name in known}
        # Filtering belongs to collation here: it must happen wherever a batch is made.
        sampling |= {"filter_per_worker": True, "neighbor_sampler": neighbor_sampler}
        self.neighbor_loader = NeighborLoader(
            data, num_neighbors, input_nodes, batch_size=batch_size, **sampling
        )
        kind, nodes = _input_nodes(data, input_nodes)
        sizes = fixed_size_options or FixedSizeOptions.from_loader(self.neighbor_loader)
        if isinstance(data, HeteroData):
            sizes.to_hetero(data.node_types, data.edge_types)
        self.fixed_size_options = sizes
        pad = padding_collater(sizes, over_size_strategy, add_pad_masks, follow_batch, exclude_keys)
        self._piece = _PaddedPiece(self.neighbor_loader, pad, kind)
        kwargs["collate_fn"] = self._item(self._piece, batch_size)
        rows: Any = range(nodes)
        super().__init__(dataset=rows, batch_size=batch_size, **kwargs)

    def nativeCollate(self, index: Any) -> Any:
        """The sample around these nodes, as PyG makes it."""
        return self._piece.make(index)

    def fixedSizeCollate(self, data_list: Any) -> Any:
        """Such a sample, padded."""
        return self._piece.pad(data_list)

    def _item(self, collate: Collate, rows: int) -> Collate:
        return collate


class FixedSizeNeighborLoader(PlainNeighborLoader, CombiningLoader):
    """The same for each micro-batch of a call; other arguments are `poptorch.DataLoader`'s."""

    def __init__(self, *args: Any, options: Options | None = None, **kwargs: Any) -> None:
        check_mode(kwargs)
        super().__init__(*args, options=options or Options(), **kwargs)

    def _item(self, collate: Collate, rows: int) -> Collate:
        return CombinedBatchingCollater(collate, rows)


class _PaddedPiece:
    """Let PyG make a piece of these indices, and pad it."""

    def __init__(self, make: Any, collate: FixedSizeCollater, kind: Any) -> None:
        self.make = make
        self._collate = collate
        self._kind = kind

    def __call__(self, indices: list[int]) -> Any:
        return self.pad(self.make(indices))

    def pad(self, piece: Any) -> Any:
        """The piece as a batch of fixed size, with what is known of its seeds."""
        store = piece if self._kind is None else piece[self._kind]
        seeds = {name: store[name] for name in _SEEDS if name in store}
        for name in seeds:
            del store[name]
        batch = self._collate([piece])
        target = batch if self._kind is None else batch[self._kind]
        for name, value in seeds.items():
            target[name] = value
        return batch


def _input_nodes(data: Any, input_nodes: Any) -> tuple[Any, int]:
    """The type of the nodes a sample begins with, and how many there are."""
    kind, nodes, *_ = get_input_nodes(data, input_nodes)
    return kind, len(nodes)
