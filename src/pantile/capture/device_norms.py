"""Norms as the device computes them, in strict mode.

    inferenceModel(model.train())       a batch norm takes the batch; its running statistics stay
    _Popart groupNorm…Grouping          group g of G has channels g, g + G, g + 2G, … and not the
                                        first C / G, the next C / G, …

Scripts for PopTorch expect forward to return the statistics it was given, unless it trains. Groups
of channels far apart are what `_Popart.set("groupNormStridedChannelGrouping", True)` asks for by
its name; known of the device is only that its numbers are then not those of eager PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class DeviceNorms:
    """What norms have to know of the step: whether it trains, and how channels are grouped."""

    training: bool
    strided_groups: bool = False

    def changed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call that computes it as the device does; any other function's as it is."""
        if func is F.batch_norm and not self.training:
            return func, (), _without_writes(args, kwargs)
        if func is F.group_norm and self.strided_groups:
            return strided_group_norm, args, kwargs
        return func, args, kwargs


def _without_writes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `F.batch_norm` by name, with copies of the statistics it would write."""
    given = dict(inspect.signature(F.batch_norm).bind(*args, **kwargs).arguments)
    for name in ("running_mean", "running_var") if given.get("training") else ():
        if isinstance(given[name], torch.Tensor):
            given[name] = given[name].clone()
    return given


def strided_group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`F.group_norm` with every `num_groups`-th channel in one group."""
    batch, channels, *rest = input.shape
    each = channels // num_groups
    neighbours = input.reshape(batch, each, num_groups, *rest).transpose(1, 2)
    normal = F.group_norm(neighbours.reshape(input.shape), num_groups, eps=eps)
    normal = normal.reshape(batch, num_groups, each, *rest).transpose(1, 2).reshape(input.shape)
    along = (channels, *(1 for _ in rest))
    if weight is not None:
        normal = normal * weight.to(input.dtype).view(along)
    return normal if bias is None else normal + bias.to(input.dtype).view(along)
