"""Which tensor is trained.

1. `identity_loss(...)`, if forward called it: the last one that no other one reads.
2. Else the recognised losses (cross_entropy, mse_loss, …) that no other loss reads. What forward
   returns is what is trained: a returned loss is trained as it is, and when forward returns
   something made of it (`5 * loss`, `loss + penalty`, a sum of two losses), that is trained.
   PopTorch trained the inner loss and ignored the rest; strict mode still does.
3. Else a single returned 0-d floating-point tensor (not in strict mode).

Detection is structural: a frozen model has a loss too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pantile.errors import LossError

_ADVICE = "mark the final loss with poptorch.identity_loss(loss, reduction='none')"


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor and the graph node that made it."""

    tensor: torch.Tensor
    node: fx.Node


def choose_loss(
    marked: Sequence[Seen], recognised: Sequence[Seen], returned: Sequence[Seen], *, strict: bool
) -> Seen:
    """The one tensor to start back-propagation from."""
    final = _final(marked)
    if len(final) == 1:
        return final[0]
    if len(final) > 1:
        raise _several(final)
    final = _final(recognised)
    if not final:
        return _lone_scalar(returned, strict=strict)
    if strict:
        if len(final) > 1:
            raise _several(final)
        return final[0]
    return _as_returned(final, returned)


def _as_returned(losses: list[Seen], returned: Sequence[Seen]) -> Seen:
    """The returned tensor that is, or is made of, all the final losses."""
    wanted = {loss.node for loss in losses}
    if len(losses) == 1:
        same = [out for out in returned if out.node is losses[0].node]
        if same:
            return same[0]
    made_of = [
        out
        for out in returned
        if out.tensor.is_floating_point()
        and out.tensor.numel() == 1
        and wanted <= _ancestors(out.node)
    ]
    unique = list({out.node: out for out in made_of}.values())
    if len(unique) == 1:
        return unique[0]
    if len(unique) > 1:
        # Of several, the one that the others are made of is the loss; the rest are reports.
        first = [
            out for out in unique if all(out.node in _ancestors(o.node) | {o.node} for o in unique)
        ]
        if len(first) == 1:
            return first[0]
        raise _several(unique)
    if len(losses) == 1:
        return losses[0]
    raise _several(losses)


def _lone_scalar(returned: Sequence[Seen], *, strict: bool) -> Seen:
    scalars = {
        out.node: out
        for out in returned
        if out.tensor.dim() == 0 and out.tensor.is_floating_point()
    }
    if len(scalars) == 1 and not strict:
        return next(iter(scalars.values()))
    raise LossError(
        "Couldn't find a loss in graph: forward calls no recognised loss function"
        + (" and returns several scalars" if len(scalars) > 1 else ""),
        fix=f"compute the loss inside forward, or {_ADVICE}",
    )


def _final(losses: Sequence[Seen]) -> list[Seen]:
    """The losses that no other loss is made of, each once."""
    unique = {loss.node: loss for loss in losses}
    inner: set[fx.Node] = set()
    for node in unique:
        inner |= _ancestors(node)
    return [loss for node, loss in unique.items() if node not in inner]


def _ancestors(node: fx.Node) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        for parent in pending.pop().all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return seen


def _several(losses: Sequence[Seen]) -> LossError:
    names = ", ".join(loss.node.name for loss in losses)
    return LossError(f"Multiple independent losses found in graph. They are {names}", fix=_ADVICE)
