"""Points within a distance."""

from pantile.geometric.static.neighbors import radius, radius_graph

__all__ = ["radius", "radius_graph"]
