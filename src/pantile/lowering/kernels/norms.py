"""Batch norm, and its gradient, as few operations for an element as they can be.

    y = (x - mean) * (rstd * weight) + bias              the factor is one number for a channel
    to x = ((g - sum(g) / n) - (x - mean) * (sum(g * (x - mean)) / n * rstd²)) * (rstd * weight)

Sums are divided by n: a rounded 1 / n is an error that all pixels share. What comes before a norm
sees little else, because its gradients add up to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

Maybe = torch.Tensor | None


def _of_channels(x: Maybe, like: torch.Tensor) -> Any:
    return None if x is None else x.reshape(-1, *(1,) * (like.dim() - 2))


def _normalised(
    x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: Maybe, bias: Maybe
) -> torch.Tensor:
    weight, bias = _of_channels(weight, x), _of_channels(bias, x)
    result = (x - mean) * (rstd if weight is None else rstd * weight)
    return result if bias is None else result + bias


def _batch_norm(
    x: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        mean, rstd = running_mean, 1 / (running_var + eps).sqrt()
        result = _normalised(x, _of_channels(mean, x), _of_channels(rstd, x), weight, bias)
        return result, x.new_zeros((0,)), x.new_zeros((0,)), running_mean, running_var
    dims = [0, *range(2, x.dim())]
    count = x.numel() / x.shape[1]
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    result = _normalised(x, mean, rstd, weight, bias)
    mean, rstd = mean.squeeze(dims), rstd.squeeze(dims)
    unbiased = variance.squeeze(dims) * (count / (count - 1))
    new_mean = momentum * mean + (1 - momentum) * running_mean
    new_var = momentum * unbiased + (1 - momentum) * running_var
    return result, mean, rstd, new_mean, new_var


def _batch_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    mean: Maybe,
    rstd: Maybe,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    if not training:
        assert running_mean is not None and running_var is not None
        mean, rstd = running_mean, (running_var + eps).rsqrt()
    assert mean is not None and rstd is not None
    dims = [0, *range(2, x.dim())]
    count = math.prod(x.shape[dim] for dim in dims)
    apart = x - _of_channels(mean, x)
    total = gradient.sum(dims)
    along = (gradient * apart).sum(dims)
    scale = _of_channels(rstd if weight is None else rstd * weight, x)
    if training:
        slope = _of_channels(along / count * (rstd * rstd), x)
        to_x = ((gradient - apart * slope) - _of_channels(total / count, x)) * scale
    else:
        to_x = gradient * scale
    return to_x, along * rstd if wanted[1] else None, total if wanted[2] else None


NORMS: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
