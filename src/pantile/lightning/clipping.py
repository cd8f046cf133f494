"""Gradient clipping as part of an optimizer's step, so that fused steps clip too.

    Trainer(gradient_clip_val=0.5)    ──►    clipped(optimizer):  step() = clip, then the rule

The optimizer that clips shares everything with the user's: groups, state, learning rates. Only its
class differs, which is what the core records the update of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pantile.optim.clipping import clip_by_global_norm


def clipped(optimizer: Any, value: float | None, algorithm: Any) -> Any:
    """The optimizer, or one that clips before it steps, as the Trainer's flags say."""
    if not value:
        return optimizer
    by_value = getattr(algorithm, "value", algorithm) == "value"
    kind: Any = type(optimizer)
    twin = object.__new__(_clipping_class(kind, float(value), by_value))
    twin.__dict__ = optimizer.__dict__
    return twin


@cache
def _clipping_class(kind: Any, value: float, by_value: bool) -> Any:
    rule = kind.step

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        groups = self.param_groups
        found = [p for group in groups for p in group["params"] if p.grad is not None]
        if by_value:
            for parameter in found:
                parameter.grad = torch.clamp(parameter.grad, -value, value)
        else:
            clip_by_global_norm(found, value)
        return rule(self, closure)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "step": step})
