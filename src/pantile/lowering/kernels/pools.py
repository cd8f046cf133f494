"""Pools of volumes, and adaptive maxima, in pools of images.

A maximum or a sum over a box is one over its planes, of what is one over each plane:

    [n, c, d, h, w]   -- h, w -->   [n, c, d, oh, ow]   -- d -->   [n, c, od, oh, ow]

The first of equal maxima is the same one either way: boxes are read plane by plane, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten: Any = torch.ops.aten

Size = Sequence[int]


def _three(numbers: Size | None, fill: Size) -> tuple[int, int, int]:
    found = tuple(numbers or fill)
    depth, height, width = found * 3 if len(found) == 1 else found
    return depth, height, width


def _planes(x: torch.Tensor) -> torch.Tensor:
    """[n, c, d, h, w] as images: every plane is a channel."""
    n, c, d, h, w = x.shape
    return x.reshape(n, c * d, h, w)


def _columns(x: torch.Tensor, depth: int) -> torch.Tensor:
    """Pooled planes as images whose rows are the planes."""
    n, many, h, w = x.shape
    return x.reshape(n, many // depth, depth, h * w)


def _batched(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 5 else x.unsqueeze(0)


# Maxima


def _max_windows(
    size: Size, stride: Size | None, padding: Size, dilation: Size
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The windows in a plane, and those along the depth."""
    sizes = _three(size, ())
    parts = (sizes, _three(stride, sizes), _three(padding, (0,)), _three(dilation, (1,)))
    plane = tuple(list(part[1:]) for part in parts)
    return plane, tuple([part[0], fill] for part, fill in zip(parts, (1, 1, 0, 1), strict=True))


def _max_pool3d(
    x: torch.Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = (0,),
    dilation: Size = (1,),
    ceil_mode: bool = False,
) -> Any:
    plane, depth = _max_windows(kernel_size, stride, padding, dilation)
    whole = _batched(x)
    maxima, places = aten.max_pool2d_with_indices.default(_planes(whole), *plane, ceil_mode)
    (d, height, width), (h, w) = whole.shape[2:], maxima.shape[2:]
    result, second = aten.max_pool2d_with_indices.default(_columns(maxima, d), *depth, ceil_mode)
    shape = (*x.shape[:-3], result.shape[2], h, w)
    # Only the backward asks for places as a rule, which finds them again: nobody computes these.
    found = second // (h * w)
    found = found * (height * width) + torch.gather(_columns(places, d), 2, found)
    return result.reshape(shape), found.reshape(shape)


def _max_pool3d_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
    indices: torch.Tensor,
) -> Any:
    plane, depth = _max_windows(kernel_size, stride, padding, dilation)
    images = _planes(_batched(x))
    maxima, places = aten.max_pool2d_with_indices.default(images, *plane, ceil_mode)
    columns = _columns(maxima, x.shape[-3])
    pooled, second = aten.max_pool2d_with_indices.default(columns, *depth, ceil_mode)
    backward = aten.max_pool2d_with_indices_backward.default
    along = backward(gradient.reshape(pooled.shape), columns, *depth, ceil_mode, second)
    across = backward(along.reshape(maxima.shape), images, *plane, ceil_mode, places)
    return across.reshape(x.shape)


# Means


def _mean_windows(
    size: Size, stride: Size | None, padding: Size
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    sizes = _three(size, ())
    parts = (sizes, _three(stride, sizes), _three(padding, (0,)))
    plane = tuple(list(part[1:]) for part in parts)
    return plane, tuple([part[0], fill] for part, fill in zip(parts, (1, 1, 0), strict=True))


def _counts(
    sides: Size, pooled: Size, sizes: Size, strides: Size, paddings: Size, inside: bool
) -> list[torch.Tensor]:
    """How many elements a window has along each dim; windows may reach over the padding's end."""
    found = []
    for side, count, size, stride, padding in zip(
        sides, pooled, sizes, strides, paddings, strict=True
    ):
        start = torch.arange(count) * stride - padding
        last = (start + size).clamp(max=side if inside else side + padding)
        found.append(last - (start.clamp(min=0) if inside else start))
    return found


def _divisor(
    x: torch.Tensor,
    pooled: Size,
    how: tuple[Size, Size | None, Size],
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor | float:
    if divisor_override:
        return float(divisor_override)
    sizes = _three(how[0], ())
    strides, paddings = _three(how[1], sizes), _three(how[2], (0,))
    counts = _counts(x.shape[-3:], pooled, sizes, strides, paddings, not count_include_pad)
    depth, height, width = counts
    return (depth.view(-1, 1, 1) * height.view(-1, 1) * width).to(x.dtype)


def _avg_pool3d(
    x: torch.Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    plane, depth = _mean_windows(kernel_size, stride, padding)
    whole = _batched(x)
    sums = aten.avg_pool2d.default(_planes(whole), *plane, ceil_mode, True, 1)
    h, w = sums.shape[2:]
    sums = aten.avg_pool2d.default(_columns(sums, whole.shape[2]), *depth, ceil_mode, True, 1)
    shape = (*x.shape[:-3], sums.shape[2], h, w)
    how = (kernel_size, stride, padding)
    return sums.reshape(shape) / _divisor(x, shape[-3:], how, count_include_pad, divisor_override)


def _avg_pool3d_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Size,
    stride: Size,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    plane, depth = _mean_windows(kernel_size, stride, padding)
    how = (kernel_size, stride, padding)
    pooled = gradient.shape[-3:]
    shares = gradient / _divisor(x, pooled, how, count_include_pad, divisor_override)
    n, c, d, h, w = _batched(x).shape
    od, oh, ow = pooled
    columns = x.new_empty(n, c, d, oh * ow)
    backward = aten.avg_pool2d_backward.default
    shares = backward(shares.reshape(n, c, od, oh * ow), columns, *depth, ceil_mode, True, 1)
    images = x.new_empty(n, c * d, h, w)
    shares = backward(shares.reshape(n, c * d, oh, ow), images, *plane, ceil_mode, True, 1)
    return shares.reshape(x.shape)


def _adaptive_avg_pool3d(x: torch.Tensor, output_size: Size) -> Any:
    depth, height, width = output_size
    whole = _batched(x)
    means = aten._adaptive_avg_pool2d.default(_planes(whole), [height, width])
    columns = _columns(means, whole.shape[2])
    means = aten._adaptive_avg_pool2d.default(columns, [depth, height * width])
    return means.reshape(*x.shape[:-3], depth, height, width)


def _adaptive_avg_pool3d_backward(gradient: torch.Tensor, x: torch.Tensor) -> Any:
    n, c, d, h, w = _batched(x).shape
    od, oh, ow = gradient.shape[-3:]
    backward = aten._adaptive_avg_pool2d_backward.default
    columns = x.new_empty(n, c, d, oh * ow)
    shares = backward(gradient.reshape(n, c, od, oh * ow), columns)
    images = x.new_empty(n, c * d, h, w)
    return backward(shares.reshape(n, c * d, oh, ow), images).reshape(x.shape)


# Adaptive maxima: windows of equal size are a pool; others are cut out, one dim after the other


def _even(x: torch.Tensor, pooled: Size) -> list[int] | None:
    """The windows' sizes, if all are equal."""
    sides = x.shape[-len(pooled) :]
    if any(side % count for side, count in zip(sides, pooled, strict=True)):
        return None
    return [side // count for side, count in zip(sides, pooled, strict=True)]


def _spans(side: int, count: int) -> list[tuple[int, int]]:
    """Where each window starts, and how long it is."""
    ends = [-(-(i + 1) * side // count) for i in range(count)]
    return [(i * side // count, end - i * side // count) for i, end in enumerate(ends)]


def _maxima(x: torch.Tensor, dim: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima of windows along a dim, and their places."""
    windows = [(first, x.narrow(dim, first, n)) for first, n in _spans(x.shape[dim], count)]
    values = [window.amax(dim, keepdim=True) for _, window in windows]
    places = [window.argmax(dim, keepdim=True) + first for first, window in windows]
    return torch.cat(values, dim), torch.cat(places, dim)


def _maxima_backward(gradient: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    side, count = x.shape[dim], gradient.shape[dim]
    behind = x.dim() - 1 - dim
    numbers = torch.arange(side).view(-1, *(1,) * behind)
    _, places = _maxima(x, dim, count)
    shares = [
        torch.where(numbers == places.narrow(dim, i, 1), gradient.narrow(dim, i, 1), 0.0)
        for i in range(count)
    ]
    result = shares[0]
    for share in shares[1:]:
        result = result + share
    return result


def _adaptive_max_pool(pool: Any) -> Callable[..., Any]:
    def rule(x: torch.Tensor, output_size: Size) -> Any:
        window = _even(x, output_size)
        if window is not None:
            return pool(x, window, window)
        values, places = x, None
        for dim in range(x.dim() - 1, x.dim() - 1 - len(output_size), -1):
            values, found = _maxima(values, dim, output_size[dim - x.dim()])
            if places is None:
                places = found
            else:
                places = found * math.prod(x.shape[dim + 1 :]) + torch.gather(places, dim, found)
        return values, places

    return rule


def _adaptive_max_pool_backward(even: Callable[..., Any], dims: int) -> Callable[..., Any]:
    def rule(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> Any:
        window = _even(x, gradient.shape[-dims:])
        if window is not None:
            rest = ([0] * dims, [1] * dims, False, indices)
            return even(gradient, x, window, window, *rest)
        inputs = [x]
        order = range(x.dim() - 1, x.dim() - 1 - dims, -1)
        for dim in order:
            inputs.append(_maxima(inputs[-1], dim, gradient.shape[dim])[0])
        for dim, given in zip(reversed(order), inputs[-2::-1], strict=True):
            gradient = _maxima_backward(gradient, given, dim)
        return gradient

    return rule


POOLS: dict[Any, Callable[..., Any]] = {
    aten.max_pool3d_with_indices.default: _max_pool3d,
    aten.max_pool3d_with_indices_backward.default: _max_pool3d_backward,
    aten.avg_pool3d.default: _avg_pool3d,
    aten.avg_pool3d_backward.default: _avg_pool3d_backward,
    aten._adaptive_avg_pool3d.default: _adaptive_avg_pool3d,
    aten._adaptive_avg_pool3d_backward.default: _adaptive_avg_pool3d_backward,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool(aten.max_pool2d_with_indices.default),
    aten.adaptive_max_pool2d_backward.default: _adaptive_max_pool_backward(
        aten.max_pool2d_with_indices_backward.default, 2
    ),
    aten.adaptive_max_pool3d.default: _adaptive_max_pool(_max_pool3d),
    aten.adaptive_max_pool3d_backward.default: _adaptive_max_pool_backward(_max_pool3d_backward, 3),
}
