"""The nearest point."""

from pantile.geometric.static.neighbors import nearest

__all__ = ["nearest"]
