"""The parser of PyG data."""

from pantile.geometric import PyGArgsParser
from pantile.geometric.arguments import register_parsers as registerCustomArgParsers

__all__ = ["PyGArgsParser", "registerCustomArgParsers"]
