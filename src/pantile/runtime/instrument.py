"""Keep the host's view of device-resident weights true, with one pull on first access.

    owner trains ──► device newer than host
    user reads model.fc.weight ──► owner.copyWeightsToHostIfNeeded() ──► value
    user reads again ──► the owner has nothing to copy ──► value

When an executor keeps its weights on the device, `instrument` swaps the class of the host module,
of its children, and of their parameters and buffers for look-alikes that ask the executor first.
`release` swaps them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pantile.errors import AlreadyWrapped, CaptureError
from pantile.runtime.instrument_link import (
    Link,
    Watch,
    WeightOwner,
    link_of,
    links,
    lock,
    original_class,
    suspend,
)
from pantile.runtime.instrument_module import module_class
from pantile.runtime.instrument_tensor import plain, tensor_class

__all__ = [
    "WeightOwner",
    "check_buffers",
    "instrument",
    "links",
    "links_under",
    "owner_of",
    "plain",
    "release",
    "suspended",
    "uninstrumented",
]


def instrument(module: nn.Module, owner: WeightOwner) -> None:
    """Make every host access to the weights of `module` ask `owner` for them first.

    Calling it again with the same owner also takes in what was added to the module since.
    A part of a wrapped model can be wrapped by itself: both owners are then asked.
    """
    check_buffers(module)
    _check_parameters(module)
    with lock:
        watch = _root_watch(module)
        current = watch.owner() if watch is not None else None
        if current is not None and current is not owner:
            raise AlreadyWrapped(
                f"model {original_class(type(module)).__name__!r} has already been wrapped by "
                "another training executor",
                fix="call model.destroy() before wrapping it again",
            )
        if watch is None or current is None:
            watch = Watch(owner)
        for child in module.modules():
            watch.add(child, module_class, root=child is module)
        for _, tensor in _named_tensors(module, "_parameters", "_buffers"):
            watch.add(tensor, tensor_class)


def release(module: nn.Module) -> None:
    """Give the model and all its parts their own classes back, and forget the owner.

    It pulls nothing, and does nothing to a module that was not itself given to `instrument`.
    """
    watch = _root_watch(module)
    if watch is not None:
        watch.release()


def owner_of(module: nn.Module) -> WeightOwner | None:
    """The live owner of the module's weights: its own, else that of a model it is part of."""
    link = link_of(module)
    if link is None:
        return None
    watches = link.watches if link.root is None else (link.root, *link.watches)
    return next((owner for watch in watches if (owner := watch.owner()) is not None), None)


@contextmanager
def suspended(module: nn.Module) -> Iterator[None]:
    """Let this thread touch the weights of `module` without any pull, inside."""
    with suspend({watch for link in links_under(module) for watch in link.watches}):
        yield


@contextmanager
def uninstrumented(module: nn.Module) -> Iterator[None]:
    """Give the module and its parts their own classes back, inside, for every thread.

    Capture needs it: fake tensors are made from plain parameters only. Owners stay owners, and
    the instrumentation returns at the end, also for a class that was swapped inside.
    """
    links = list(links_under(module))
    with lock:
        for link in links:
            link.undress()
    try:
        yield
    finally:
        with lock:
            for link in links:
                link.dress()


def check_buffers(module: nn.Module) -> None:
    """Refuse a module with a buffer that is not exactly a `torch.Tensor`."""
    for name, buffer in _named_tensors(module, "_buffers"):
        kind = original_class(type(buffer))
        if kind is not torch.Tensor:
            raise CaptureError(
                f"buffer {name!r} is a {kind.__name__}; buffers must be torch.Tensor exactly",
                fix=f"register {name!r} with register_parameter, or pass a plain tensor such as "
                "value.detach() to register_buffer",
            )


def _check_parameters(module: nn.Module) -> None:
    for name, parameter in _named_tensors(module, "_parameters"):
        if type(parameter).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            kind = original_class(type(parameter)).__name__
            raise CaptureError(
                f"parameter {name!r} is a {kind}, which has no storage of its own to sync",
                fix=f"replace {name!r} by a plain nn.Parameter before wrapping the model",
            )


def _root_watch(module: nn.Module) -> Watch | None:
    link = link_of(module)
    return link.root if link is not None else None


def _named_tensors(module: nn.Module, *slots: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters or buffers by full name, read past the instrumentation."""
    for prefix, child in module.named_modules():
        for slot in slots:
            for name, tensor in vars(child)[slot].items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor


def links_under(module: nn.Module) -> Iterator[Link]:
    """The links of the module, its children and their tensors, where they are instrumented."""
    tensors = (tensor for _, tensor in _named_tensors(module, "_parameters", "_buffers"))
    for obj in (*module.modules(), *tensors):
        link = link_of(obj)
        if link is not None:
            yield link
