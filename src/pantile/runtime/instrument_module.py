"""The class a module has while its weights live on the device.

    model.fc            child modules and plain attributes: as ever
    model.fc.weight     a parameter or buffer: pull, then as ever
    model._parameters   and all that reads it (parameters(), state_dict(), _apply …): the same
    model(x)            the same
    copy, pickle        the same, and the result has the plain class
    model.destroy()     on the root of the wrapped model only

Only the instance's class is replaced. No mixin enters the method resolution order, because torch
and others search it: `fx.GraphModule` picks the class to copy by walking it.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

from pantile.runtime.instrument_link import instrumented_class, link_of, original_class, pull
from pantile.runtime.instrument_tensor import plain


class _Seed(nn.Module):
    """See `instrumented_class`."""

    def __init_subclass__(cls) -> None:
        pass


# A made class refers to its original, so an entry leaves with the last instance that uses it.
_made: weakref.WeakValueDictionary[tuple[type, bool], type] = weakref.WeakValueDictionary()


def module_class(original: type, root: bool) -> type:
    """The instrumented subclass of a module class, made on first use."""
    made = _made.get((original, root))
    if made is None:
        methods = _access_methods(original) | _copy_methods(original)
        if root:
            methods["destroy"] = _destroy
        made = _made[original, root] = instrumented_class(original, _Seed, methods)
    return made


def _access_methods(original: Any) -> dict[str, Any]:
    def read(self: nn.Module, name: str) -> Any:
        value = original.__getattr__(self, name)
        if isinstance(value, torch.Tensor):
            pull(self)
        return value

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        pull(self)
        return original.__call__(self, *args, **kwargs)

    return {
        "__getattr__": read,
        "__call__": call,
        "_parameters": _pulling_slot("_parameters"),
        "_buffers": _pulling_slot("_buffers"),
    }


def _copy_methods(original: Any) -> dict[str, Any]:
    def reduce(self: nn.Module, protocol: int) -> Any:
        pull(self)
        reduced = original.__reduce_ex__(self, protocol)
        if isinstance(reduced, str):
            return reduced
        function, args, *rest = reduced
        return (_plain_class(function), tuple(map(_plain_class, args)), *rest)

    def state_dict(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        pull(self)
        state = original.state_dict(self, *args, **kwargs)
        if isinstance(state, MutableMapping):
            for name, value in state.items():
                # Replacing the value of a key that exists is safe while iterating.
                if isinstance(value, torch.Tensor):
                    state[name] = plain(value)
        return state

    return {"__reduce_ex__": reduce, "state_dict": state_dict}


def _pulling_slot(name: str) -> property:
    """An entry of the instance `__dict__` that pulls when it is read as an attribute."""

    def read(self: nn.Module) -> Any:
        pull(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def write(self: nn.Module, value: Any) -> None:
        self.__dict__[name] = value

    return property(read, write)


def _plain_class(value: Any) -> Any:
    return original_class(value) if isinstance(value, type) else value


def _destroy(self: nn.Module) -> None:
    """Destroy the executor that wraps this model, so that it can be wrapped again."""
    link = link_of(self)
    watch = link.root if link is not None else None
    if watch is None:
        return
    owner = watch.owner()
    if owner is not None:
        owner.destroy()
    watch.release()
