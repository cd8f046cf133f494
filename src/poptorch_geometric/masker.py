"""Maskers, and the types their methods take."""

from pantile.geometric import LayerMasker, Masker, NoMasker, PaddingMasker, PreLayerMasker
from pantile.geometric.maskers import Entries, Layer, Mask

__all__ = [
    "Entries",
    "Layer",
    "LayerMasker",
    "Mask",
    "Masker",
    "NoMasker",
    "PaddingMasker",
    "PreLayerMasker",
]
