"""Loaders of graph datasets."""

from pantile.geometric import DataLoader, FixedSizeDataLoader

__all__ = ["DataLoader", "FixedSizeDataLoader"]
