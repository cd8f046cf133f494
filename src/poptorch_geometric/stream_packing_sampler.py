"""Packing."""

from pantile.geometric import StreamPackingSampler

__all__ = ["StreamPackingSampler"]
