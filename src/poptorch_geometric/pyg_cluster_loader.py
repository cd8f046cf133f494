"""The loader of clusters, one batch an item."""

from pantile.geometric.subgraphs import PlainClusterLoader as FixedSizeClusterLoader

__all__ = ["FixedSizeClusterLoader"]
