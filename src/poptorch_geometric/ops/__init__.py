"""Neighbour searches whose results have one shape, inside and outside of a compiled model."""

from poptorch_geometric.ops.knn import knn
from poptorch_geometric.ops.knn_graph import knn_graph
from poptorch_geometric.ops.knn_interpolate import knn_interpolate
from poptorch_geometric.ops.nearest import nearest
from poptorch_geometric.ops.radius import radius, radius_graph

__all__ = ["knn", "knn_graph", "knn_interpolate", "nearest", "radius", "radius_graph"]
