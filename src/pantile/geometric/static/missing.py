"""Edges that are not there.

A neighbour search finds some number of edges; a compiled program has room for the most there can
be. An edge that is not there has -1 at both ends:

    edge_index   0  2 -1          gathered for it: node 0, for want of another
                 1  1 -1          aggregated: into a row after the last node, which is cut off

So it changes no sum, mean, maximum or softmax. Only when a capture has made such edges does message
passing look for them; without, programs are as they would be.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

MISSING = -1


@dataclass
class Capture:
    """What is known of the capture under way in this context."""

    has_missing: bool = False


current: ContextVar[Capture | None] = ContextVar("current", default=None)


def may_be_missing() -> bool:
    """Whether edges may be missing in the model being captured."""
    capture = current.get()
    return capture is not None and capture.has_missing


def mark(edge_index: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    """The edges, without those where `missing` is True."""
    capture = current.get()
    if capture is not None:
        capture.has_missing = True
    return torch.where(missing, MISSING, edge_index)


def redirect(index: torch.Tensor, size: int) -> torch.Tensor:
    """The index with `size`, the row after the last, for what is missing."""
    return torch.where(index < 0, size, index)


def index_select(
    original: Callable[..., Any], layer: Any, src: torch.Tensor, index: torch.Tensor
) -> Any:
    """`MessagePassing._index_select`: any row will do for an edge that nobody takes."""
    return original(layer, src, index.clamp(min=0) if may_be_missing() else index)


def aggregate(
    original: Callable[..., Any],
    aggregation: Any,
    x: torch.Tensor,
    index: torch.Tensor | None = None,
    ptr: torch.Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
    **kwargs: Any,
) -> Any:
    """`Aggregation.__call__`, with a row for what is missing."""
    if index is None or dim_size is None or not may_be_missing():
        return original(aggregation, x, index, ptr, dim_size, dim, **kwargs)
    taken = redirect(index, dim_size)
    result = original(aggregation, x, taken, None, dim_size + 1, dim, **kwargs)
    return result.narrow(dim, 0, dim_size)


def softmax(
    original: Callable[..., Any],
    src: torch.Tensor,
    index: torch.Tensor | None = None,
    ptr: torch.Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Any:
    """`torch_geometric.utils.softmax`, in which missing edges are a group of their own."""
    if index is None or num_nodes is None or not may_be_missing():
        return original(src, index, ptr, num_nodes, dim)
    return original(src, redirect(index, num_nodes), None, num_nodes + 1, dim)
