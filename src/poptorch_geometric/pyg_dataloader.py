"""Loaders of graph datasets, one batch an item, and where scripts import the strategies from."""

from pantile.geometric import FixedSizeStrategy, OverSizeStrategy
from pantile.geometric.plain import DataLoader, FixedSizeDataLoader

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]
