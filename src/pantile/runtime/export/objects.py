"""Objects that are no modules: what of them is written, and how they are made again.

A plain object is one whose class is written in Python and says nothing about copying: it is its
class and its attributes. It is made again without `__init__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any

import torch
from torch import nn

from pantile.errors import StoreError
from pantile.runtime.instrument_link import original_class

_PUT_BY_EXECUTORS = ("replicaGrouping",)


def check_plain(value: object, where: str, way_out: str) -> None:
    """Refuse an object that is more than its class and its attributes."""
    kind = type(value)
    if isinstance(value, torch.Generator):
        raise StoreError(
            f"{where} is a torch.Generator, whose state belongs to this process",
            fix="seed with Options.randomSeed(...) and draw with torch functions in forward",
        )
    why = _not_plain(kind)
    if why:
        raise StoreError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be exported: {why}",
            fix=f"use plain values, tensors and modules, or {way_out}",
        )


def _not_plain(kind: type) -> str:
    if issubclass(kind, (nn.Module, torch.optim.Optimizer, type)):
        return "it is not a plain object"
    for name in ("__reduce__", "__reduce_ex__", "__del__", "__getnewargs__", "__getnewargs_ex__"):
        if getattr(kind, name, None) is not getattr(object, name, None):
            return f"it has its own {name}"
    try:
        _blank(kind)
    except TypeError:
        return "there is more to it than its attributes"
    return ""


def _blank(kind: type) -> Any:
    """An object of that class on which nothing has been done; TypeError if it is built in C."""
    base = next((base for base in (dict, list) if issubclass(kind, base)), object)
    return base.__new__(kind)


def object_state(value: Any) -> Mapping[str, Any]:
    """The attributes of a plain object, those in slots too."""
    state = value.__getstate__() if has_own_state(type(value)) else object.__getstate__(value)
    if isinstance(state, tuple) and len(state) == 2:
        state = {**(state[0] or {}), **(state[1] or {})}
    if state is None:
        return {}
    if not isinstance(state, dict):
        raise StoreError(
            f"__getstate__ of {type(value).__qualname__} returned a {type(state).__name__}",
            fix="return a dict from __getstate__",
        )
    return state


def has_own_state(kind: type) -> bool:
    """Does the class say what of its objects is kept?"""
    return getattr(kind, "__getstate__", None) is not object.__getstate__


def new_object(kind: type) -> Any:
    """An object of that class on which nothing has been done."""
    why = _not_plain(kind)
    if why:
        raise StoreError(
            f"the file holds a {kind.__module__}.{kind.__qualname__}, which is refused: {why}",
            fix="load only files that you or somebody you trust exported",
        )
    return _blank(kind)


def set_state(made: Any, state: dict[str, Any]) -> None:
    """Give a new object its attributes."""
    if hasattr(type(made), "__setstate__"):
        made.__setstate__(state)
        return
    for name, value in state.items():
        # Past __setattr__: frozen dataclasses refuse, and others check what is not whole yet.
        if isinstance(getattr(type(made), name, None), MemberDescriptorType):
            object.__setattr__(made, name, value)
        else:
            made.__dict__[name] = value


# Tensors


def tensor_kind(tensor: torch.Tensor, where: str, way_out: str) -> str:
    """`parameter` or `tensor`; other classes are refused."""
    kind = original_class(type(tensor))
    if kind in (nn.Parameter, torch.Tensor):
        return "parameter" if kind is nn.Parameter else "tensor"
    if nn.parameter.is_lazy(tensor):
        why, fix = "has no shape yet", "call the model once on the CPU before wrapping it"
    else:
        why, fix = f"is a {kind.__name__}", "use a plain torch.Tensor or nn.Parameter"
    raise StoreError(f"{where} {why}: it cannot be exported", fix=f"{fix}, or {way_out}")


def tensor_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """What was put on the tensor as attributes, without what an executor puts there."""
    return {n: v for n, v in vars(tensor).items() if n not in _PUT_BY_EXECUTORS}


def finish_tensor(tensor: torch.Tensor, kind: str, requires_grad: bool) -> torch.Tensor:
    """The tensor under its class."""
    if kind == "parameter":
        return nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def torch_constant(name: object, kinds: tuple[type, ...] = (torch.dtype,)) -> Any:
    """`torch.float32` and the like, by name."""
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, kinds):
        raise ValueError(f"{name!r} is no dtype or other constant of torch")
    return found
