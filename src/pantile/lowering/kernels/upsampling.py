"""Images made larger, and the gradients of that, in simpler operators.

The gradient of each direction is a product with a matrix: what each old pixel has of each new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _step(old: int, new: int, corners: bool, scale: float | None) -> float:
    """How far apart new pixels are, in old ones."""
    if corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else old / new


def _linear_shares(
    old: int, new: int, corners: bool, scale: float | None, like: torch.Tensor
) -> torch.Tensor:
    """[new, old]: a pixel between two old ones has a share of both."""
    step = _step(old, new, corners, scale)
    place = torch.arange(new, dtype=like.dtype)
    place = place * step if corners else ((place + 0.5) * step - 0.5).clamp(min=0.0)
    place = place.clamp(max=old - 1.0).unsqueeze(1)
    return (1 - (place - torch.arange(old, dtype=like.dtype)).abs()).clamp(min=0.0)


def _nearest_shares(old: int, new: int, scale: float | None, like: torch.Tensor) -> torch.Tensor:
    """[new, old]: a pixel is one old one."""
    step = _step(old, new, False, scale)
    place = (torch.arange(new, dtype=torch.float32) * step).floor().clamp(max=old - 1.0)
    same = place.unsqueeze(1) == torch.arange(old, dtype=torch.float32)
    return same.to(like.dtype)


def _through(gradient: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    images, channels, height, width = gradient.shape
    flat = torch.mm(gradient.reshape(images * channels * height, width), columns)
    old = columns.shape[1]
    turned = flat.view(images * channels, height, old).transpose(1, 2)
    flat = torch.mm(turned.reshape(images * channels * old, height), rows)
    result = flat.view(images * channels, old, rows.shape[1]).transpose(1, 2)
    return result.reshape(images, channels, rows.shape[1], old)


def bilinear_backward(
    gradient: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """`upsample_bilinear2d_backward`."""
    height, width = input_size[2:]
    rows = _linear_shares(height, output_size[0], align_corners, scales_h, gradient)
    columns = _linear_shares(width, output_size[1], align_corners, scales_w, gradient)
    return _through(gradient, rows, columns)


def nearest_backward(
    gradient: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """`upsample_nearest2d_backward`."""
    images, channels, height, width = input_size
    if output_size[0] % height == output_size[1] % width == 0:
        down, across = output_size[0] // height, output_size[1] // width
        if scales_h in (None, float(down)) and scales_w in (None, float(across)):
            shape = (images, channels, height, down, width, across)
            return gradient.reshape(shape).sum((3, 5))
    rows = _nearest_shares(height, output_size[0], scales_h, gradient)
    columns = _nearest_shares(width, output_size[1], scales_w, gradient)
    return _through(gradient, rows, columns)


def upsampling() -> dict[Any, Callable[..., Any]]:
    """The table of these operators."""
    from torch._decomp import decomposition_table

    bilinear = aten.upsample_bilinear2d.default
    return {
        bilinear: decomposition_table[bilinear],
        aten.upsample_bilinear2d_backward.default: bilinear_backward,
        aten.upsample_nearest2d_backward.default: nearest_backward,
    }
