"""The loaders of sampled neighbourhoods: for executors, and one batch an item."""

from pantile.geometric import FixedSizeNeighborLoader
from pantile.geometric.subgraphs import PlainNeighborLoader as PyGFixedSizeNeighborLoader

__all__ = ["FixedSizeNeighborLoader", "PyGFixedSizeNeighborLoader"]
