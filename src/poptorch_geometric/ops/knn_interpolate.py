"""Values of the nearest points, interpolated."""

from pantile.geometric.static.neighbors import knn_interpolate

__all__ = ["knn_interpolate"]
