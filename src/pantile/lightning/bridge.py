"""Gradients that a program has computed, handed over by an ordinary `loss.backward()`.

program ──► loss, gradients            (scaled by what the loss will be scaled by)
bridge(loss, gradients, parameters)    a loss with a grad_fn
loss.backward()                        parameter.grad += gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pantile.errors import Error


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss: torch.Tensor,
        gradients: list[torch.Tensor],
        scale: float,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.gradients, ctx.scale = gradients, scale
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        gradients: list[torch.Tensor] | None = ctx.gradients
        if gradients is None:
            raise Error(
                "backward() was called twice on the loss of one step",
                fix="call it once, or return the sum of the losses",
            )
        # Given away, so that they become `.grad` without a copy.
        ctx.gradients = None
        factor = float(incoming) / ctx.scale
        if factor != 1.0:
            gradients = [gradient * factor for gradient in gradients]
        return (None, None, None, *gradients)


def bridge(
    loss: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """A loss whose backward gives these gradients, which were computed for `scale * loss`."""
    bridged: torch.Tensor = _Bridge.apply(  # type: ignore[no-untyped-call]
        loss, list(gradients), scale, *parameters
    )
    return bridged
