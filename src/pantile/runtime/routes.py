"""The short way for calls seen before: plain tensors of known shapes go straight to their program.

Binding a call to forward's parameters and comparing nested structures takes longer than a small
model; for calls of this kind a dictionary look-up says the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from pantile.capture.signature import Binder, Bound
from pantile.runtime.compiled import Compiled, Variant


class Routes:
    """Which program serves which kind of call, for one set of train/eval flags."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._known: dict[Hashable, tuple[Compiled, tuple[int | torch.Tensor, ...] | None]] = {}

    def find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], variant: Variant
    ) -> tuple[Compiled, Sequence[torch.Tensor]] | None:
        """The program of a call and its tensors in the program's order."""
        if not self._known:
            return None
        known = self._known.get(_kind(args, kwargs, variant))
        if known is None:
            return None
        compiled, order = known
        given = (*args, *kwargs.values()) if kwargs else args
        if order is None:
            return compiled, given
        return compiled, [given[i] if isinstance(i, int) else i for i in order]

    def remember(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bound: Bound, compiled: Compiled
    ) -> None:
        """Take the short way for such calls from now on, if they are of the simple kind."""
        kind = _kind(args, kwargs, compiled.variant)
        if kind is None or bound.places != tuple(range(len(bound.tensors))):
            return
        order = self._binder.order(len(args), tuple(kwargs))
        if len(order) == len(bound.tensors):
            direct = order == tuple(range(len(args) + len(kwargs)))
            self._known[kind] = (compiled, None if direct else order)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


def _kind(args: tuple[Any, ...], kwargs: Mapping[str, Any], variant: Variant) -> Hashable:
    """What calls of one kind have in common; None for a call that must be bound properly."""
    kind: list[Hashable] = [variant.scaled, variant.autocast, len(args), *kwargs]
    given = (*args, *kwargs.values()) if kwargs else args
    for value in given:
        if type(value) is not torch.Tensor:
            return None
        kind.append(value.dtype)
        kind.append(value.shape)
    if len({id(value) for value in given}) != len(given):
        return None
    return tuple(kind)
