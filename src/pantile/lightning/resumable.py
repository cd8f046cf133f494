"""Go on in the middle of an epoch, exactly: same samples, same random numbers, same gradients.

    saved      batches delivered · torch's generator when the epoch began, and now · gradients of
               an accumulation that is not complete
    resumed    the epoch is begun with the first generator, the batches are passed over, the second
               generator is put back

Lightning saves the state of every loader that has one, so this is a state for loaders. The
checkpoint stays an ordinary one: without Pantile the extra entries are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

from pantile.data.loader import DataLoader

GRADIENTS = "pantile_gradients"
_GENERATORS = ("began", "now")


class Position:
    """Where a loader is in its epoch."""

    def __init__(self) -> None:
        self.delivered = 0
        self.began = torch.get_rng_state()
        self.resume: Mapping[str, Any] | None = None

    def batches(self, begin: Callable[[], Iterable[Any]], length: float) -> Iterator[Any]:
        """The batches of an epoch, from where it is to go on."""
        resume, self.resume = self.resume, None
        skipped = 0
        if resume is not None and resume["batches"] < length:
            torch.set_rng_state(resume["began"])
            skipped = resume["batches"]
        self.began, self.delivered = torch.get_rng_state(), 0
        return self._delivered(iter(begin()), skipped, resume)

    def _delivered(
        self, batches: Iterator[Any], skipped: int, resume: Mapping[str, Any] | None
    ) -> Iterator[Any]:
        for batch in batches:
            self.delivered += 1
            if self.delivered > skipped:
                yield batch
            elif self.delivered == skipped and resume is not None:
                torch.set_rng_state(resume["now"])

    def state(self) -> dict[str, Any]:
        """What to save."""
        states = zip(_GENERATORS, (self.began, torch.get_rng_state()), strict=True)
        # As text: whoever compares two checkpoints compares them with `==`.
        return {"batches": self.delivered, **{name: _as_text(state) for name, state in states}}


def _as_text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _as_states(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved, with generators as tensors; older checkpoints hold them as such."""
    found = {}
    for name in _GENERATORS:
        if isinstance(saved[name], str):
            values = list(bytes.fromhex(saved[name]))
            found[name] = torch.tensor(values, dtype=torch.uint8)
    return {**saved, **found}


@cache
def _resumable_class(kind: Hashable) -> Any:
    """A class of loaders that have a position. One base only: loaders do not take a second one."""

    base: Any = kind
    iterate = base.__iter__

    def __iter__(self: Any) -> Iterator[Any]:
        return vars(self)["position"].batches(lambda: iterate(self), _length(self))  # type: ignore[no-any-return]

    def state_dict(self: Any) -> dict[str, Any]:
        return vars(self)["position"].state()  # type: ignore[no-any-return]

    def load_state_dict(self: Any, state: Mapping[str, Any]) -> None:
        vars(self)["position"].resume = _as_states(state)

    members = {
        "__module__": base.__module__,
        "__iter__": __iter__,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
    }
    return type(base.__name__, (base,), members)


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


def resumable(loader: Any) -> Any:
    """The loader with a state, if it is one of torch's that has none of its own."""
    if not isinstance(loader, TorchLoader) or hasattr(loader, "state_dict"):
        return loader
    if isinstance(loader, DataLoader) and loader._accessor is not None:
        return loader  # its worker is ahead of us
    kind: Any = type(loader)
    if kind is DataLoader:  # made by the user, who may ask whether it is the one that is used
        loader.__class__ = _resumable_class(kind)
        vars(loader)["position"] = Position()
        return loader
    twin: Any = object.__new__(_resumable_class(kind))
    vars(twin).update(vars(loader), position=Position())
    return twin


def save_gradients(checkpoint: dict[str, Any], module: Any, *, accumulating: bool) -> None:
    """Keep the gradients of an accumulation that is not complete."""
    if accumulating:
        named = module.named_parameters()
        checkpoint[GRADIENTS] = {n: p.grad.clone() for n, p in named if p.grad is not None}


def put_gradients_back(saved: Mapping[str, torch.Tensor], module: Any) -> None:
    """Before the first step: the Trainer clears all gradients after it has read a checkpoint."""
    for name, parameter in module.named_parameters():
        if name in saved:
            parameter.grad = saved[name].clone()
