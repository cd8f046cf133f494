"""Maskers: what a model calls to keep padding out of a loss or a pooling.

    masker = PaddingMasker()                 NoMasker() where there is no padding
    x = masker.node_masker(x, batch.nodes_mask)

A `LayerMasker` does the same around layers, so that `forward` need not change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Entries = torch.Tensor | tuple[torch.Tensor, ...]
Mask = torch.Tensor | None
Layer = Callable[..., Any]


class Masker(ABC):
    """Masks what belongs to padding nodes, edges and graphs."""

    @abstractmethod
    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """Mask rows of padding nodes."""

    @abstractmethod
    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """Mask rows of padding edges."""

    @abstractmethod
    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """Mask rows of padding graphs."""


class NoMasker(Masker):
    """Masks nothing: for data without padding."""

    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """The entries."""
        return node_entries

    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """The entries."""
        return edge_entries

    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """The entries."""
        return graph_entries


class PaddingMasker(Masker):
    """Replaces rows of padding by zeros. No gradient flows through them."""

    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """The entries, zero where the mask is False."""
        return _zero_padding(node_entries, mask)

    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """The entries, zero where the mask is False."""
        return _zero_padding(edge_entries, mask)

    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """The entries, zero where the mask is False."""
        return _zero_padding(graph_entries, mask)


class LayerMasker(ABC):
    """Wraps layers so that their inputs are masked. All inputs must be of one level."""

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self.masker = masker

    @abstractmethod
    def node_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of nodes and `mask=`."""
        return _masked(layer, self.masker.node_masker)

    @abstractmethod
    def edge_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of edges and `mask=`."""
        return _masked(layer, self.masker.edge_masker)

    @abstractmethod
    def graph_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of graphs and `mask=`."""
        return _masked(layer, self.masker.graph_masker)


class PreLayerMasker(LayerMasker):
    """Masks the inputs of a layer before it."""

    def node_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of nodes and `mask=`."""
        return super().node_masker(layer)

    def edge_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of edges and `mask=`."""
        return super().edge_masker(layer)

    def graph_masker(self, layer: Layer) -> Layer:
        """The layer, taking entries of graphs and `mask=`."""
        return super().graph_masker(layer)


def _masked(layer: Layer, mask_entries: Callable[..., Any]) -> Layer:
    def masked_layer(*entries: torch.Tensor, mask: Mask = None) -> Any:
        return layer(*mask_entries(entries, mask=mask))

    return masked_layer


def _zero_padding(entries: Entries, mask: Mask) -> Entries:
    if mask is None:
        return entries
    if isinstance(entries, tuple):
        return tuple(_zero_rows(each, mask) for each in entries)
    return _zero_rows(entries, mask)


def _zero_rows(entries: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = mask.reshape(mask.shape + (1,) * (entries.dim() - mask.dim()))
    return torch.where(rows, entries, 0)
