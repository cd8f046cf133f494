"""The nearest points."""

from pantile.geometric.static.neighbors import knn

__all__ = ["knn"]
