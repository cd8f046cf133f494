"""The class a parameter or buffer has while its value lives on the device.

w.shape, w.anything      pull, then as ever
torch.equal(a, w), w+1   pull through `__torch_function__`; results are plain tensors
print, copy, pickle      pull; what comes out has the plain class
isinstance, hash, is     questions of identity: no pull
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pantile.program.calls import tensors_in
from pantile.runtime.instrument_link import (
    instrumented_class,
    is_instrumented,
    link_of,
    original_class,
    pull,
)

# `isinstance(w, nn.Parameter)` reads `_is_param`; `torch.utils.weak` looks for `_fix_weakref`.
_IDENTITY = frozenset(
    {"__class__", "__torch_function__", "__weakref__", "_fix_weakref", "_is_buffer", "_is_param"}
)
_read = torch.Tensor.__getattribute__
_without_subclasses = torch._C.DisableTorchFunctionSubclass
_disabled = torch._C._disabled_torch_function_impl
_make_parameter = nn.Parameter.__new__.__code__

_made: weakref.WeakValueDictionary[type, type] = weakref.WeakValueDictionary()


def tensor_class(original: type, root: bool = False) -> type:
    """The instrumented subclass of a tensor class, made on first use."""
    made = _made.get(original)
    if made is None:
        methods = {
            "__torch_function__": classmethod(_torch_function),
            "__getattribute__": _getattribute,
            "__setattr__": _setattr,
            "__repr__": _repr,
            "__format__": lambda self, spec: format(plain(self), spec),
            "__deepcopy__": _deepcopy,
            "__reduce_ex__": _reduce_ex,
            "detach": _detach,
        }
        made = _made[original] = instrumented_class(original, original, methods)
    return made


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the same storage, up to date, under the tensor's own class."""
    if not is_instrumented(type(tensor)):
        return tensor
    pull(tensor)
    original = original_class(type(tensor))
    with _without_subclasses():
        alias = tensor.data
        if original is torch.Tensor:
            alias.requires_grad_(tensor.requires_grad)
        else:
            alias = torch.Tensor._make_subclass(original, alias, tensor.requires_grad)
        if tensor.is_leaf:
            alias.grad = tensor.grad
        alias.__dict__.update(tensor.__dict__)
    return alias


def _torch_function(
    cls: type, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Pull for every instrumented argument, then do what torch would do without us."""
    kwargs = kwargs or {}
    for tensor in _instrumented((args, kwargs)):
        pull(tensor)
    others = [kind for kind in map(original_class, types) if _overrides(kind)]
    for kind in others:
        result = kind.__torch_function__(func, tuple(others), args, kwargs)  # type: ignore[attr-defined]
        if result is not NotImplemented:
            return result
    if others:
        return NotImplemented
    with _without_subclasses():
        return func(*args, **kwargs)


def _overrides(kind: Any) -> bool:
    """Whether a class handles torch functions itself, which neither Tensor nor Parameter does."""
    return kind is not torch.Tensor and kind.__torch_function__ is not _disabled


def _instrumented(tree: Any) -> Iterator[torch.Tensor]:
    return (tensor for tensor in tensors_in(tree) if is_instrumented(type(tensor)))


def _getattribute(self: torch.Tensor, name: str) -> Any:
    if name not in _IDENTITY:
        pull(self)
    return _read(self, name)


def _setattr(self: torch.Tensor, name: str, value: Any) -> None:
    if name == "_is_param" and link_of(self) is None:
        # The last step of `nn.Parameter(w)`: see `_detach`.
        self.__class__ = nn.Parameter
        return
    pull(self)
    torch.Tensor.__setattr__(self, name, value)


def _repr(self: torch.Tensor, **kwargs: Any) -> str:
    return str(plain(self).__repr__(**kwargs))  # type: ignore[no-untyped-call]


def _reduce_ex(self: torch.Tensor, protocol: int) -> Any:
    return plain(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    if id(self) not in memo:
        memo[id(self)] = copy.deepcopy(plain(self), memo)
    return memo[id(self)]


def _detach(self: torch.Tensor) -> torch.Tensor:
    """Detach to a plain tensor, except for `nn.Parameter(w)`.

    That constructor insists on a `detach` that keeps the class and then sets `_is_param`; it is
    given an unwatched tensor of this class, which becomes a plain parameter at that moment.
    """
    pull(self)
    with _without_subclasses():
        detached = torch.Tensor.detach(self)
    if sys._getframe(1).f_code is _make_parameter:
        detached.__class__ = type(self)
    return detached
