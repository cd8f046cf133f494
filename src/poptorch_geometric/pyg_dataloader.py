"""Where scripts import the strategies from."""

from pantile.geometric import FixedSizeStrategy, OverSizeStrategy

__all__ = ["FixedSizeStrategy", "OverSizeStrategy"]
