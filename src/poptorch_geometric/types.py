"""The parser of PyG data."""

from pantile.geometric import PyGArgsParser

__all__ = ["PyGArgsParser"]
