"""Ops on point clouds: farthest-point sampling and nearest neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from pantile.errors import OperandError, OperandValueError
from pantile.ops.operands import require_tensor


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Indices of points that are far from each other.

    `ptr` holds the boundaries of the clouds in `src` [points, dims]: cloud i is
    `src[ptr[i]:ptr[i+1]]`. Of each cloud `ceil(ratio * size)` points are taken: the first (or a
    random one), then always the point farthest from those taken.
    """
    require_tensor("fps", "src", src)
    is_list = isinstance(ptr, (list, tuple)) and all(type(p) is int for p in ptr)
    if not is_list or len(ptr) < 2:
        raise OperandError(
            f"fps: ptr={ptr!r} must be a list of at least two ints",
            fix=f"pass the boundaries of the clouds, [0, {src.shape[0]}] for a single one",
        )
    if list(ptr) != sorted(ptr) or ptr[0] < 0 or ptr[-1] > src.shape[0]:
        raise OperandError(
            f"fps: ptr={ptr!r} must ascend from 0 to the number of points, {src.shape[0]}",
            fix=f"pass the boundaries of the clouds, [0, {src.shape[0]}] for a single one",
        )
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise OperandError(
            f"fps: ratio={ratio!r} must be a number above 0 and at most 1", fix="pass ratio=0.5"
        )
    points = src.detach().reshape(src.shape[0], -1)
    result: torch.Tensor = torch.ops.pantile.fps(points, ptr, float(ratio), bool(random_start))
    return result


@torch.library.custom_op("pantile::fps", mutates_args=())
def _fps(src: torch.Tensor, ptr: Sequence[int], ratio: float, random_start: bool) -> torch.Tensor:
    taken = [
        begin + _sample(src[begin:end], count, random_start=random_start)
        for begin, end, count in _clouds(ptr, ratio)
    ]
    return torch.cat(taken)


@_fps.register_fake
def _as_many(
    src: torch.Tensor, ptr: Sequence[int], ratio: float, random_start: bool
) -> torch.Tensor:
    count = sum(count for _, _, count in _clouds(ptr, ratio))
    return src.new_empty((count,), dtype=torch.int64)


def _clouds(ptr: Sequence[int], ratio: float) -> list[tuple[int, int, int]]:
    """(begin, end, number of points to take) of each cloud."""
    return [
        (begin, end, math.ceil(ratio * (end - begin))) for begin, end in itertools.pairwise(ptr)
    ]


def _sample(points: torch.Tensor, count: int, *, random_start: bool) -> torch.Tensor:
    taken = torch.zeros(count, dtype=torch.int64)
    if count == 0:
        return taken
    if random_start:
        taken[0] = torch.randint(points.shape[0], ())
    distance = torch.full((points.shape[0],), math.inf, dtype=points.dtype)
    for i in range(1, count):
        step = (points - points[taken[i - 1]]).square().sum(dim=1)
        distance = torch.minimum(distance, step)
        taken[i] = distance.argmax()
    return taken


def nearest(
    x: torch.Tensor,
    y: torch.Tensor,
    batch_x: torch.Tensor | list[int] | None = None,
    batch_y: torch.Tensor | list[int] | None = None,
) -> torch.Tensor:
    """For each point of `x` [n, dims], the index of the nearest point of `y` [m, dims].

    With batches (sorted, one number a point), only points of the same batch are compared. If only
    one is given, the points of the other are all of batch 0.
    """
    x = _points("x", x)
    y = _points("y", y)
    if x.shape[1] != y.shape[1]:
        raise OperandError(
            f"nearest: points of x have {x.shape[1]} coordinates, those of y have {y.shape[1]}",
            fix="pass points of the same space",
        )
    distance = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(dim=2)
    if batch_x is not None or batch_y is not None:
        own = _batch("batch_x", batch_x, x.shape[0])
        other = _batch("batch_y", batch_y, y.shape[0])
        _check_partners(own, other)
        distance = distance.masked_fill(_apart(own, other), math.inf)
    return distance.argmin(dim=1)


def _points(name: str, value: Any) -> torch.Tensor:
    tensor = require_tensor("nearest", name, value).detach()
    return tensor.reshape(-1, 1) if tensor.dim() == 1 else tensor.reshape(tensor.shape[0], -1)


Numbers = torch.Tensor | list[int]  # of batches; of a list, the values are known when compiling


def _batch(name: str, value: Any, count: int) -> Numbers:
    if value is None:
        return [0] * count
    is_list = isinstance(value, (list, tuple)) and all(type(item) is int for item in value)
    if not isinstance(value, torch.Tensor) and not is_list:
        raise OperandValueError(
            f"nearest: argument {name} must be a tensor or a list of ints, not {value!r}",
            fix=f"pass the batch of each of the {count} points",
        )
    shape = list(value.shape) if isinstance(value, torch.Tensor) else [len(value)]
    if shape != [count]:
        raise OperandValueError(
            f"nearest: {name} has shape {shape}, there are {count} points",
            fix=f"pass the batch of each of the {count} points",
        )
    if is_list and list(value) != sorted(value):
        raise OperandValueError(f"nearest: {name}={value} is not sorted", fix="sort the points")
    return value if isinstance(value, torch.Tensor) else list(value)


def _check_partners(own: Numbers, other: Numbers) -> None:
    """Raise for a batch of `x` that has no point in `y`, if the numbers are known."""
    if isinstance(own, list) and isinstance(other, list):
        alone = sorted(set(own) - set(other))
        if alone:
            raise OperandValueError(
                f"nearest: y has no point of the batches {alone} of x",
                fix="leave those points of x out",
            )


def _apart(own: Numbers, other: Numbers) -> torch.Tensor:
    return torch.as_tensor(own).unsqueeze(1) != torch.as_tensor(other).unsqueeze(0)
