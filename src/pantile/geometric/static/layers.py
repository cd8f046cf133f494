"""Forwards of PyG layers that pick rows by value, written so that every shape is known.

Where PyG computes each group of rows with its own weights, all rows are computed with all weights
and each keeps what is its own. That is more arithmetic, in the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.utils import degree, scatter

from pantile.geometric.static.missing import may_be_missing


def assert_sorted_index(original: Callable[..., Any], aggregation: Any, index: Any) -> None:
    """`Aggregation.assert_sorted_index`: the values of an index are not known while compiling."""


def cluster_gcn_conv(
    original: Callable[..., Any], layer: Any, x: torch.Tensor, edge_index: Any
) -> Any:
    """`ClusterGCNConv.forward`: loops that are replaced keep their place with weight 0."""
    is_dense = isinstance(edge_index, torch.Tensor) and edge_index.layout == torch.strided
    if not is_dense or may_be_missing():
        return original(layer, x, edge_index)
    nodes = x.shape[layer.node_dim]
    is_loop = edge_index[0] == edge_index[1]
    counts, is_diagonal = torch.ones_like(edge_index[0], dtype=x.dtype), is_loop
    if layer.add_self_loops:
        loops = torch.arange(nodes, device=edge_index.device)
        edge_index = torch.cat([edge_index, loops.expand(2, -1)], dim=1)
        counts = torch.cat([torch.where(is_loop, 0, counts), x.new_ones(nodes)])
        is_diagonal = torch.cat([torch.zeros_like(is_loop), torch.ones_like(loops).bool()])
    inverse = 1.0 / scatter(counts, edge_index[1], 0, nodes, reduce="sum").clamp(min=1.0)
    weight = inverse[edge_index[1]]
    weight = counts * (weight + torch.where(is_diagonal, layer.diag_lambda * weight, 0))
    out = layer.propagate(edge_index, x=x, edge_weight=weight)
    return layer.lin_out(out) + layer.lin_root(x)


def hetero_linear(
    original: Callable[..., Any], layer: Any, x: torch.Tensor, type_vec: torch.Tensor
) -> torch.Tensor:
    """`HeteroLinear.forward`: every row by the weights of all types."""
    products = torch.einsum("ni,tio->tno", x, layer.weight)
    rows = torch.arange(x.shape[0], device=x.device)
    out = products[type_vec, rows]
    return out if layer.bias is None else out + layer.bias[type_vec]


def mf_conv(
    original: Callable[..., Any], layer: Any, x: Any, edge_index: Any, size: Any = None
) -> Any:
    """`MFConv.forward`: every node by the weights of all degrees."""
    is_dense = isinstance(edge_index, torch.Tensor) and edge_index.layout == torch.strided
    if not is_dense or may_be_missing():
        return original(layer, x, edge_index, size)
    pair = (x, x) if isinstance(x, torch.Tensor) else x
    target = pair[1]
    nodes = target.shape[layer.node_dim] if target is not None else (size or [0, None])[1]
    nodes = pair[0].shape[layer.node_dim] if nodes is None else nodes
    to = 1 if layer.flow == "source_to_target" else 0
    degrees = degree(edge_index[to], nodes, dtype=torch.long).clamp(max=layer.max_degree)
    h = layer.propagate(edge_index, x=pair, size=size)
    results = []
    for left, right in zip(layer.lins_l, layer.lins_r, strict=True):
        result = left(h)
        results.append(result if target is None else result + right(target))
    rows = torch.arange(nodes, device=h.device)
    return torch.stack(results)[degrees, rows]
