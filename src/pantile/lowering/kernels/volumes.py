"""Convolutions of volumes as convolutions of images with more channels.

    [n, c, d, h, w]   --->   [n * od, kd * c, h, w]   --->   [n * od, o, oh, ow]

The planes that a kernel covers become channels of one image; so all sums of a result are in one
convolution. The gradient of that step adds the planes up again where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class _Depth:
    """How kernels lie along the depth, and in how many groups channels are."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    groups: int

    def stacked(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """[n, c, d, h, w] as the images that `count` kernels along the depth see."""
        n, c, depth, h, w = x.shape
        span = (count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        after = max(0, span - self.padding - depth)
        padded = aten.constant_pad_nd.default(x, [0, 0, 0, 0, self.padding, after], 0.0)
        planes = [
            padded[:, :, first : first + (count - 1) * self.stride + 1 : self.stride]
            for first in range(0, self.kernel * self.dilation, self.dilation)
        ]
        taps = torch.stack(planes, 2)  # [n, c, kernel, count, h, w]
        taps = taps.reshape(n, self.groups, c // self.groups, self.kernel, count, h, w)
        images = taps.permute(0, 4, 1, 3, 2, 5, 6)
        return images.reshape(n * count, self.kernel * c, h, w)

    def added(self, images: torch.Tensor, n: int, depth: int) -> torch.Tensor:
        """The gradient of `stacked`: planes are added up where they came from."""
        total, many, h, w = images.shape
        count, c = total // n, many // self.kernel
        shape = (n, count, self.groups, self.kernel, c // self.groups, h, w)
        taps = images.reshape(shape).permute(0, 2, 4, 3, 1, 5, 6)
        taps = taps.reshape(n, c, self.kernel, count, h, w)
        length = max((count - 1) * self.stride + 1, depth + 2 * self.padding)
        length += (self.kernel - 1) * self.dilation
        result: torch.Tensor | None = None
        for tap in range(self.kernel):
            one = self._apart(taps[:, :, tap])
            first = tap * self.dilation
            one = aten.constant_pad_nd.default(
                one, [0, 0, 0, 0, first, length - first - one.shape[2]], 0.0
            )
            result = one if result is None else result + one
        assert result is not None
        return result[:, :, self.padding : self.padding + depth].contiguous()

    def _apart(self, planes: torch.Tensor) -> torch.Tensor:
        """Planes with as many empty ones between as kernels move on."""
        if self.stride == 1:
            return planes
        n, c, count, h, w = planes.shape
        spread: torch.Tensor = aten.constant_pad_nd.default(
            planes.unsqueeze(3), [0, 0, 0, 0, 0, self.stride - 1], 0.0
        )
        whole = spread.reshape(n, c, count * self.stride, h, w)
        return whole[:, :, : (count - 1) * self.stride + 1]

    def flat(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight [o, c, kd, kh, kw] for the stacked images."""
        o, c, kd, kh, kw = weight.shape
        return weight.transpose(1, 2).reshape(o, kd * c, kh, kw)

    def deep(self, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """The gradient of `flat`."""
        o, c, kd, kh, kw = shape
        return weight.reshape(o, kd, c, kh, kw).transpose(1, 2)


def _folded(x: torch.Tensor) -> torch.Tensor:
    """[n, c, d, h, w] as n * d images."""
    n, c, d, h, w = x.shape
    return x.transpose(1, 2).reshape(n * d, c, h, w)


def _unfolded(images: torch.Tensor, n: int) -> torch.Tensor:
    total, c, h, w = images.shape
    return images.reshape(n, total // n, c, h, w).transpose(1, 2)


def _pieces(
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> tuple[_Depth, tuple[Any, ...]]:
    """What is along the depth, and the geometry of the images."""
    depth = _Depth(weight.shape[2], stride[0], padding[0], dilation[0], groups)
    rest = (list(stride[1:]), list(padding[1:]), list(dilation[1:]), False, [0, 0], groups)
    return depth, rest


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if x.dim() != 5:
        return NotImplemented
    depth, rest = _pieces(weight, stride, padding, dilation, groups)
    if transposed:
        return _transposed(x, weight, bias, depth, rest, output_padding)
    span = depth.dilation * (depth.kernel - 1) + 1
    count = (x.shape[2] + 2 * depth.padding - span) // depth.stride + 1
    images = depth.stacked(x, count)
    result = aten.convolution.default(images, depth.flat(weight), bias, *rest)
    return _unfolded(result, x.shape[0])


def _transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depth: _Depth,
    rest: tuple[Any, ...],
    output_padding: Sequence[int],
) -> torch.Tensor:
    """What a convolution's gradient gives its input."""
    count = (x.shape[2] - 1) * depth.stride - 2 * depth.padding
    count += depth.dilation * (depth.kernel - 1) + 1 + output_padding[0]
    how = (*rest[:3], True, list(output_padding[1:]), depth.groups)
    images = aten.convolution.default(_folded(x), depth.flat(weight), None, *how)
    result = depth.added(images, x.shape[0], count)
    return result if bias is None else result + bias.view(-1, 1, 1, 1)


def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    if x.dim() != 5:
        return NotImplemented
    depth, rest = _pieces(weight, stride, padding, dilation, groups)
    bias = gradient.sum((0, 2, 3, 4)) if output_mask[2] else None
    if transposed:  # the same convolution, with the roles of input and gradient exchanged
        images = depth.stacked(gradient, x.shape[2])
        to_x = to_weight = None
        if output_mask[0]:
            found = aten.convolution.default(images, depth.flat(weight), None, *rest)
            to_x = _unfolded(found, x.shape[0])
        if output_mask[1]:
            to_weight = _to_weight(_folded(x), images, weight, depth, rest)
        return to_x, to_weight, bias
    images, across = depth.stacked(x, gradient.shape[2]), _folded(gradient)
    mask = [output_mask[0], output_mask[1], False]
    to_images, flat, _ = aten.convolution_backward.default(
        across, images, depth.flat(weight), None, *rest, mask
    )
    to_x = depth.added(to_images, x.shape[0], x.shape[2]) if output_mask[0] else None
    to_weight = depth.deep(flat, weight.shape) if output_mask[1] else None
    return to_x, to_weight, bias


def _to_weight(
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    depth: _Depth,
    rest: tuple[Any, ...],
) -> torch.Tensor:
    _, flat, _ = aten.convolution_backward.default(
        gradient, images, depth.flat(weight), None, *rest, [False, True, False]
    )
    return depth.deep(flat, weight.shape)


VOLUMES: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
