"""Self-loops without changing the number of edges by value.

PyG takes loops out of `edge_index` before it adds one to every node. Here a loop that should go
stays in its place as a missing edge, or with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.utils import scatter

from pantile.errors import OperandValueError
from pantile.geometric.static.missing import mark, may_be_missing, redirect


def remove_self_loops(
    original: Callable[..., Any], edge_index: Any, edge_attr: Any = None
) -> tuple[Any, Any]:
    """`torch_geometric.utils.remove_self_loops`: loops become missing edges."""
    if not _is_dense(edge_index):
        return original(edge_index, edge_attr)  # type: ignore[no-any-return]
    return mark(edge_index, edge_index[0] == edge_index[1]), edge_attr


def add_self_loops(
    original: Callable[..., Any],
    edge_index: Any,
    edge_attr: Any = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> tuple[Any, Any]:
    """`torch_geometric.utils.add_self_loops`: attributes of missing edges do not count."""
    reduces = isinstance(fill_value, str) and edge_attr is not None
    if not (_is_dense(edge_index) and reduces and may_be_missing()):
        return original(edge_index, edge_attr, fill_value, num_nodes)  # type: ignore[no-any-return]
    nodes = _known(num_nodes)
    taken = redirect(edge_index[1], nodes)
    own = scatter(edge_attr, taken, dim=0, dim_size=nodes + 1, reduce=fill_value)[:-1]
    return _with_loops(edge_index, nodes), torch.cat([edge_attr, own])


def add_remaining_self_loops(
    original: Callable[..., Any],
    edge_index: Any,
    edge_attr: Any = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> tuple[Any, Any]:
    """`torch_geometric.utils.add_remaining_self_loops`: a loop that is there keeps its weight.

    It is moved to the loops at the end; its old place has weight 0.
    """
    attributes = edge_attr is not None and edge_attr.dim() > 1
    if not _is_dense(edge_index) or attributes or isinstance(fill_value, str | torch.Tensor):
        return original(edge_index, edge_attr, fill_value, num_nodes)  # type: ignore[no-any-return]
    nodes = _known(num_nodes)
    is_loop = edge_index[0] == edge_index[1]
    if edge_attr is None:
        weights = torch.ones(edge_index.shape[1], device=edge_index.device)
        own = torch.ones(nodes, device=edge_index.device)
    else:
        fill = 1.0 if fill_value is None else fill_value
        weights = edge_attr
        places = torch.where(is_loop, edge_index[0], nodes)
        empty = edge_attr.new_full((nodes + 1,), fill)
        own = empty.index_put((places,), edge_attr)[:-1]
    kept = torch.where(is_loop, 0, weights)
    return _with_loops(edge_index, nodes), torch.cat([kept, own])


def _is_dense(edge_index: Any) -> bool:
    return isinstance(edge_index, torch.Tensor) and edge_index.layout == torch.strided


def _known(num_nodes: Any) -> int:
    if isinstance(num_nodes, int):
        return num_nodes
    raise OperandValueError(
        f"self-loops are added to num_nodes={num_nodes!r} nodes, and a compiled program must know "
        "their number",
        fix="pass num_nodes=x.size(0)",
    )


def _with_loops(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    loops = torch.arange(nodes, dtype=edge_index.dtype, device=edge_index.device)
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1)
