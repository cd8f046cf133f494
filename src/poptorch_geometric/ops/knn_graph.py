"""Edges to the nearest points."""

from pantile.geometric.static.neighbors import knn_graph

__all__ = ["knn_graph"]
