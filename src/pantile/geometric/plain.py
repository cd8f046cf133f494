"""Loaders of graph datasets for any device: each item is one batch, as torch's own loader gives it.

    plain.FixedSizeDataLoader  ◄──  loaders.FixedSizeDataLoader  ──►  pantile.data.DataLoader
    one batch of one size           as many as a call takes           joins them

The loaders for executors inherit from these and say only how several batches become one item.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data import HeteroData

from pantile.errors import DataArgumentError, GraphOptionError
from pantile.geometric.collate import Collate, Names, PlainCollater, padding_collater
from pantile.geometric.packing import StreamPackingSampler
from pantile.geometric.sizes import FixedSizeOptions, FixedSizeStrategy, OverSizeStrategy


class DataLoader(TorchLoader[Any]):
    """Batches of `batch_size` graphs, as PyG makes them."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Names = None,
        exclude_keys: Names = None,
        **kwargs: Any,
    ) -> None:
        self.follow_batch = follow_batch
        self.exclude_keys = exclude_keys
        rows = None if kwargs.get("batch_sampler") is not None else batch_size
        kwargs["collate_fn"] = self._item(PlainCollater(follow_batch, exclude_keys), rows)
        super().__init__(dataset=dataset, batch_size=batch_size, shuffle=shuffle, **kwargs)

    def _item(self, collate: Collate, rows: int | None) -> Collate:
        """What makes an item, given what makes a batch of so many rows of the dataset."""
        return collate


class FixedSizeDataLoader(TorchLoader[Any]):
    """Batches that all have the sizes of `fixed_size_options`, filled up with padding.

    `batch_size` counts the padding graph: a batch has `batch_size - 1` graphs of the dataset, with
    `FixedSizeStrategy.StreamPack` as many as fit and at most so many. Without options the sizes are
    those of `FixedSizeOptions.from_dataset`. `over_size_strategy` says what becomes of graphs that
    do not fit, `add_pad_masks` attaches the masks of `FixedSizeCollater`. A `batch_sampler` of the
    caller's own yields the graphs of each batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: Names = None,
        exclude_keys: Names = None,
        **kwargs: Any,
    ) -> None:
        sizes = fixed_size_options or FixedSizeOptions.from_dataset(dataset, batch_size)
        if isinstance(dataset[0], HeteroData):
            sizes.to_hetero(dataset[0].node_types, dataset[0].edge_types)
        _check_batch_size(batch_size, sizes)
        self.fixed_size_options = sizes
        self.padded_batch_size = batch_size
        pad = padding_collater(sizes, over_size_strategy, add_pad_masks, follow_batch, exclude_keys)
        if fixed_size_strategy is FixedSizeStrategy.StreamPack:
            _check_no_sampler(kwargs)
            skips = over_size_strategy is OverSizeStrategy.Skip
            kwargs["batch_sampler"] = _packs(dataset, sizes, shuffle=shuffle, skips=skips)
        elif over_size_strategy is OverSizeStrategy.Skip:
            raise GraphOptionError(
                "OverSizeStrategy.Skip leaves out single graphs, which only StreamPack can do",
                fix="use FixedSizeStrategy.StreamPack, or OverSizeStrategy.TrimNodesAndEdges",
            )
        rows: int | None = batch_size - 1
        if kwargs.get("batch_sampler") is not None:
            rows, shuffle = None, False
        kwargs["collate_fn"] = self._item(pad, rows)
        super().__init__(dataset=dataset, batch_size=rows or 1, shuffle=shuffle, **kwargs)

    def _item(self, collate: Collate, rows: int | None) -> Collate:
        """What makes an item, given what makes a batch of so many rows of the dataset."""
        return collate


def _packs(
    dataset: Any, sizes: FixedSizeOptions, *, shuffle: bool, skips: bool
) -> StreamPackingSampler:
    return StreamPackingSampler(
        dataset,
        sizes.num_graphs - 1,
        max_num_nodes=sizes.total_num_nodes - 1,
        max_num_edges=sizes.total_num_edges - 1,
        base_sampler=RandomSampler(dataset) if shuffle else SequentialSampler(dataset),
        allow_skip_data=skips,
    )


def _check_no_sampler(kwargs: dict[str, Any]) -> None:
    if kwargs.get("batch_sampler") is not None:
        raise GraphOptionError(
            "FixedSizeStrategy.StreamPack brings its own batch_sampler",
            fix="leave batch_sampler out, or use FixedSizeStrategy.PadToMax with it",
        )


def _check_batch_size(batch_size: int, sizes: FixedSizeOptions) -> None:
    if batch_size != sizes.num_graphs:
        raise DataArgumentError(
            f"batch_size={batch_size} is not the num_graphs={sizes.num_graphs} of the options",
            fix=f"pass batch_size={sizes.num_graphs}; both count the padding graph",
        )
