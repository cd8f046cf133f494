"""Neighbour searches with results of one shape; see `missing` for those not found.

    knn, radius               [2, points of y · most neighbours]   rows: point of y, point of x
    knn_graph, radius_graph   the same within one set of points, without the points themselves

All distances are computed, which is quadratic in the number of points.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch_geometric.utils import scatter

from pantile.errors import OperandValueError
from pantile.geometric.static.missing import mark, redirect
from pantile.ops.points import nearest as nearest_points

Batch = torch.Tensor | None


def knn(
    x: torch.Tensor,
    y: torch.Tensor,
    k: int,
    batch_x: Batch = None,
    batch_y: Batch = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> torch.Tensor:
    """For each point of `y` the `k` nearest of `x`, the nearest first."""
    return _closest(_distances(x, y, batch_x, batch_y, cosine=cosine), k)


def radius(
    x: torch.Tensor,
    y: torch.Tensor,
    r: float,
    batch_x: Batch = None,
    batch_y: Batch = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> torch.Tensor:
    """For each point of `y` those of `x` within `r`, or the nearest `max_num_neighbors`."""
    distances = _distances(x, y, batch_x, batch_y)
    return _closest(distances.masked_fill(distances > r, math.inf), max_num_neighbors)


def knn_graph(
    x: torch.Tensor,
    k: int,
    batch: Batch = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> torch.Tensor:
    """Edges between each point and its `k` nearest."""
    distances = _distances(x, x, batch, batch, cosine=cosine)
    return _directed(_closest(_without_self(distances, loop), k), flow)


def radius_graph(
    x: torch.Tensor,
    r: float,
    batch: Batch = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> torch.Tensor:
    """Edges between each point and those within `r`, or the nearest `max_num_neighbors`."""
    distances = _without_self(_distances(x, x, batch, batch), loop)
    within = distances.masked_fill(distances > r, math.inf)
    return _directed(_closest(within, max_num_neighbors), flow)


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Batch = None, batch_y: Batch = None
) -> torch.Tensor:
    """For each point of `x` the nearest of `y`."""
    return nearest_points(x, y, batch_x, batch_y)


def knn_interpolate(
    x: torch.Tensor,
    pos_x: torch.Tensor,
    pos_y: torch.Tensor,
    batch_x: Batch = None,
    batch_y: Batch = None,
    k: int = 3,
    num_workers: int = 1,
) -> torch.Tensor:
    """Values of the `k` nearest points, weighted by the inverse square of their distance."""
    with torch.no_grad():
        targets, sources = knn(pos_x, pos_y, k, batch_x, batch_y)
        found = (sources >= 0).unsqueeze(-1)
        sources, rows = sources.clamp(min=0), redirect(targets, pos_y.shape[0])
        squares = (pos_x[sources] - pos_y[targets.clamp(min=0)]).square().sum(-1, keepdim=True)
        weights = found / squares.clamp(min=1e-16)
    size = pos_y.shape[0] + 1
    total = scatter(x[sources] * weights, rows, 0, size, reduce="sum")
    values: torch.Tensor = total / scatter(weights, rows, 0, size, reduce="sum")
    return values[:-1]


def _distances(
    x: torch.Tensor, y: torch.Tensor, batch_x: Batch, batch_y: Batch, *, cosine: bool = False
) -> torch.Tensor:
    """[points of y, points of x]; infinite between points of different batches."""
    x, y = _points(x), _points(y)
    if cosine:
        distances = 1 - F.normalize(y, dim=-1) @ F.normalize(x, dim=-1).t()
    else:
        distances = torch.cdist(y, x, compute_mode="donot_use_mm_for_euclid_dist")
    if batch_x is None and batch_y is None:
        return distances
    batch_x = x.new_zeros(x.shape[0], dtype=torch.int64) if batch_x is None else batch_x
    batch_y = y.new_zeros(y.shape[0], dtype=torch.int64) if batch_y is None else batch_y
    return distances.masked_fill(batch_y.unsqueeze(1) != batch_x, math.inf)


def _points(points: torch.Tensor) -> torch.Tensor:
    points = points.detach()
    if not points.is_floating_point():
        points = points.float()
    return points.unsqueeze(-1) if points.dim() == 1 else points


def _without_self(distances: torch.Tensor, loop: bool) -> torch.Tensor:
    if loop:
        return distances
    itself = torch.eye(distances.shape[0], dtype=torch.bool, device=distances.device)
    return distances.masked_fill(itself, math.inf)


def _closest(distances: torch.Tensor, most: int) -> torch.Tensor:
    """Rows and columns of the smallest finite distances of each row."""
    count = min(most, distances.shape[1])
    found, columns = distances.topk(count, largest=False)
    rows = torch.arange(distances.shape[0], device=distances.device).unsqueeze(1).expand_as(columns)
    pairs = torch.stack([rows.flatten(), columns.flatten()])
    return mark(pairs, found.flatten().isinf())


def _directed(pairs: torch.Tensor, flow: str) -> torch.Tensor:
    if flow not in ("source_to_target", "target_to_source"):
        raise OperandValueError(
            f"flow={flow!r} is neither 'source_to_target' nor 'target_to_source'",
            fix="leave it out",
        )
    return pairs.flip([0]) if flow == "source_to_target" else pairs
