"""What it costs to compute a value where it is used, in additions for each element."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from pantile.lowering.kernels.expressions import is_view
from pantile.lowering.kernels.pointwise import POINTWISE
from pantile.lowering.kernels.types import dtype_of, shape_of

DEAR = 3.5
"""A value that costs more than so many additions is computed once."""
_LONG_ROW = 64
"""So long a row may be cut in tiles, and what is computed once for a row is computed for each."""
FOR_A_ROW = 0.3
"""The cost for each element of what is computed once for a row."""


def narrower(node: fx.Node, costs: Mapping[fx.Node, float]) -> fx.Node:
    """Itself, or what it is easily computed from and takes less memory: a mask of bool."""
    found = node
    while found.target in POINTWISE:
        dear = [other for other in found.all_input_nodes if costs.get(other, 0.0) > DEAR]
        if len(dear) != 1 or shape_of(dear[0]) != shape_of(node):
            return node
        (found,) = dear
        if costs[node] - costs[found] > 1:
            return node
        if dtype_of(found).itemsize < dtype_of(node).itemsize and found.target in POINTWISE:
            return found
    return node


def is_row_wise(value: fx.Node, node: fx.Node) -> bool:
    """Is a value that is broadcast the same along the last dim?"""
    have, want = (other.meta.get("val") for other in (value, node))
    if not isinstance(have, torch.Tensor) or not isinstance(want, torch.Tensor) or not want.dim():
        return False
    return want.shape[-1] > 1 and (not have.dim() or have.shape[-1] == 1)


def is_spread(value: fx.Node) -> bool:
    """Is a value used for the whole of a long row, seen through views?"""
    for user in value.users:
        if is_view(user):
            if is_spread(user):
                return True
        elif is_row_wise(value, user) and user.meta["val"].shape[-1] >= _LONG_ROW:
            return True
    return False
