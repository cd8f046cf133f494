"""Which training executor holds a model.

Two of them would both update the same weights, so the second one is refused while the first one is
alive. While a model is held it has a `destroy` method, as PopTorch's wrapped models have; it is a
plain attribute of the instance, which does not travel with copies and files.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from torch import nn

from pantile.errors import AlreadyWrapped
from pantile.runtime.instrument import WeightOwner, links_under

_DESTROY = "destroy"


class Holder(Protocol):
    """What can hold a model."""

    def destroy(self) -> None: ...


class _Claim:
    """The bond between a model and the executor that holds it. It keeps neither alive."""

    def __init__(self, model: nn.Module, holder: Holder, *, offer_destroy: bool) -> None:
        self.holder = weakref.ref(holder, lambda _: self.end())
        self._model = weakref.ref(model, lambda _: self.end())
        self._key = id(model)
        _claims[self._key] = self
        if offer_destroy and _is_free(model):
            model.__dict__[_DESTROY] = _Destroy(self)

    def end(self) -> None:
        """Let the model go."""
        if _claims.get(self._key) is self:
            del _claims[self._key]
        model = self._model()
        if model is not None and isinstance(model.__dict__.get(_DESTROY), _Destroy):
            del model.__dict__[_DESTROY]


class _Destroy:
    """`model.destroy()`. A copied or loaded model belongs to no executor: its own does nothing."""

    def __init__(self, claim: _Claim) -> None:
        self._claim = claim

    def __call__(self) -> None:
        """Destroy the executor that holds this model, so that it can be wrapped again."""
        holder = self._claim.holder()
        if holder is not None:
            holder.destroy()
        self._claim.end()

    def __reduce__(self) -> tuple[Any, ...]:
        return (functools.partial, (bool,))


_claims: dict[int, _Claim] = {}


def _is_free(model: nn.Module) -> bool:
    """May the model be given our `destroy`? Not if it has one of its own."""
    present = getattr(model, _DESTROY, None)
    left_by_us = isinstance(present, functools.partial) and present.func is bool
    return present is None or left_by_us or isinstance(present, _Destroy)


def claim(model: nn.Module, holder: Holder, *, offer_destroy: bool) -> None:
    """Hold `model`; an error if another live executor does."""
    known = _claims.get(id(model))
    if known is not None and known.holder() is not None:
        raise AlreadyWrapped(
            f"model {type(model).__name__!r} has already been wrapped by another training executor",
            fix="call model.destroy(), or destroy() on that executor, then wrap the model again",
        )
    _Claim(model, holder, offer_destroy=offer_destroy)


def release(model: nn.Module, holder: Holder) -> None:
    """Let `model` go, if it is `holder` that holds it."""
    known = _claims.get(id(model))
    if known is not None and known.holder() is holder:
        known.end()


def owners_of(module: nn.Module) -> Iterator[WeightOwner]:
    """All live executors with device weights that `module` or a part of it depends on."""
    seen: set[int] = set()
    for link in links_under(module):
        for watch in link.watches:
            owner = watch.owner()
            if owner is not None and id(owner) not in seen:
                seen.add(id(owner))
                yield owner
