"""The loader of clusters."""

from pantile.geometric import FixedSizeClusterLoader

__all__ = ["FixedSizeClusterLoader"]
