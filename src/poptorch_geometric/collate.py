"""Collaters."""

from pantile.geometric import CombinedBatchingCollater, FixedSizeCollater, make_exclude_keys

__all__ = ["CombinedBatchingCollater", "FixedSizeCollater", "make_exclude_keys"]
