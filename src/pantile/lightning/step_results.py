"""What a program computes beyond the step itself: its gradients, or the loss it is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pantile.capture.tracked import is_tracked
from pantile.errors import CaptureError
from pantile.lightning.batches import take_apart
from pantile.lightning.programs import Inside
from pantile.lightning.tape import Deferred
from pantile.ops.loss import identity_loss


class NotFused(Exception):
    """The update cannot be part of the program of this step."""


def no_more(result: Any, inside: Inside) -> tuple[list[torch.Tensor], None]:
    return [], None


def marked_loss(result: Any, inside: Inside) -> tuple[list[torch.Tensor], None]:
    loss = loss_of(result)
    if loss is None:
        raise NotFused("training_step returned no loss")
    with torch.enable_grad():
        return [identity_loss(loss, "none")], None


def loss_of(result: Any) -> torch.Tensor | None:
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if type(loss) is Deferred:
        raise CaptureError(
            "the loss depends on the result of a metric, which is computed after the step",
            fix="compute the loss with functions of torch, and log the metric",
        )
    if loss is None or is_tracked(loss) or not isinstance(loss, torch.Tensor):
        return None
    if loss.numel() != 1:
        raise CaptureError(
            f"training_step returned a loss of shape {list(loss.shape)}",
            fix="return a scalar: loss.mean() or loss.sum()",
        )
    return loss


def gradients_of(
    module: nn.Module, result: Any, inside: Inside
) -> tuple[list[torch.Tensor], list[str] | None]:
    """Gradients of every parameter the loss depends on."""
    from pantile.capture.forward import tag_backward

    loss = loss_of(result)
    if loss is None or not loss.requires_grad:
        return [], None
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    for _, parameter in named:
        if parameter._backward_hooks:  # they will run when the gradients are handed over
            parameter._backward_hooks.clear()
    tag_backward(loss)
    with torch.enable_grad():
        seed = torch.ones_like(loss) * inside.extras[0][0].to(loss.dtype)
        found = torch.autograd.grad(loss, [p for _, p in named], seed, allow_unused=True)
    pairs = [(n, g) for (n, _), g in zip(named, found, strict=True) if g is not None]
    return [g for _, g in pairs], [n for n, _ in pairs]


def parts_of(batch: Any, wanted: int) -> int:
    """Micro-batches of an evaluation batch; an incomplete one is run in one piece."""
    if wanted == 1:
        return 1
    rows = [t.shape[0] if t.dim() else 0 for t in take_apart(batch)[0]]
    return wanted if rows and all(n and n % wanted == 0 for n in rows) else 1


def averaged(
    gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], parts: int
) -> list[torch.Tensor]:
    """Over the replicas, whose gradients lie side by side."""
    if parts == 1:
        return list(gradients)
    pairs = zip(gradients, parameters, strict=True)
    return [g.reshape(parts, *p.shape).mean(0) for g, p in pairs]


def check_finite(names: Sequence[str], gradients: Sequence[torch.Tensor]) -> None:
    """What `detect_anomaly=True` promises: a gradient that is not a number is an error."""
    for name, gradient in zip(names, gradients, strict=True):
        if gradient.isnan().any():
            raise RuntimeError(f"training_step returned nan values in the gradient of {name!r}")
