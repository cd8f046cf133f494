"""Loaders of graph datasets whose every item feeds one call of an executor."""

from __future__ import annotations

from typing import Any

from pantile.data import DataLoader as CombiningLoader
from pantile.enums import DataLoaderMode
from pantile.errors import DataArgumentError
from pantile.geometric import plain
from pantile.geometric.collate import Collate, CombinedBatchingCollater, Names
from pantile.geometric.sizes import FixedSizeOptions, FixedSizeStrategy, OverSizeStrategy
from pantile.options import Options


class DataLoader(plain.DataLoader, CombiningLoader):
    """Batches of `batch_size` graphs, as PyG makes them, for each micro-batch of a call.

    `follow_batch` and `exclude_keys` are PyG's; `options` and all others those of
    `poptorch.DataLoader`. Batches of several micro-batches are joined along dim 0, which needs
    graphs of one size; `FixedSizeDataLoader` makes them.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Names = None,
        exclude_keys: Names = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        check_mode(kwargs)
        kwargs["options"] = options or Options()
        super().__init__(dataset, batch_size, shuffle, follow_batch, exclude_keys, **kwargs)

    def _item(self, collate: Collate, rows: int | None) -> Collate:
        return CombinedBatchingCollater(collate, rows)


class FixedSizeDataLoader(plain.FixedSizeDataLoader, CombiningLoader):
    """Batches that all have the sizes of `fixed_size_options`, for each micro-batch of a call.

    The arguments are those of the plain loader it inherits from, `options`, and all others of
    `poptorch.DataLoader`.
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
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        check_mode(kwargs)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            fixed_size_options,
            fixed_size_strategy,
            over_size_strategy,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            options=options or Options(),
            **kwargs,
        )

    def _item(self, collate: Collate, rows: int | None) -> Collate:
        return CombinedBatchingCollater(collate, rows)


def check_mode(kwargs: dict[str, Any]) -> None:
    """Raise for what cuts batches along dim 0: the tensors of a graph differ there."""
    mode = kwargs.get("mode", DataLoaderMode.Sync)
    cuts = mode == DataLoaderMode.AsyncRebatched
    keeps_rest = mode == DataLoaderMode.Async and not kwargs.get("drop_last", True)
    if cuts or (keeps_rest and kwargs.get("batch_sampler") is None):
        raise DataArgumentError(
            "batches of graphs cannot be rebatched: nodes, edges and graphs differ in number",
            fix="use mode=DataLoaderMode.Async with drop_last=True, or DataLoaderMode.Sync",
        )
