"""Maskers."""

from pantile.geometric import LayerMasker, Masker, NoMasker, PaddingMasker, PreLayerMasker

__all__ = ["LayerMasker", "Masker", "NoMasker", "PaddingMasker", "PreLayerMasker"]
