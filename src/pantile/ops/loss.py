"""`identity_loss`: the user says which tensor is the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pantile.errors import OperandTypeError
from pantile.ops.context import current
from pantile.ops.operands import require_tensor

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "none": torch.clone,
}


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce `x` and mark the result as the loss to train on.

    `reduction` is "sum", "mean" or "none". On the CPU the same reduction is computed.
    """
    require_tensor("identity_loss", "x", x)
    if reduction not in _REDUCTIONS:
        raise OperandTypeError(
            f"identity_loss: reduction={reduction!r} is unknown",
            fix=f"pass one of {', '.join(map(repr, _REDUCTIONS))}",
        )
    result = _REDUCTIONS[reduction](x)
    recorder = current()
    if recorder is not None:
        recorder.mark_loss(result)
    return result
