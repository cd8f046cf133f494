"""Sizes of batches."""

from pantile.geometric import FixedSizeOptions

__all__ = ["FixedSizeOptions"]
