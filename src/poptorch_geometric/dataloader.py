"""Loaders of graph datasets for executors."""

from pantile.geometric import (
    DataLoader,
    FixedSizeDataLoader,
    FixedSizeStrategy,
    OverSizeStrategy,
)

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]
