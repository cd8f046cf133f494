"""The loader of sampled neighbourhoods."""

from pantile.geometric import FixedSizeNeighborLoader

__all__ = ["FixedSizeNeighborLoader"]
