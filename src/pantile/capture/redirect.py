"""Entry points of torch that take another way while forward is recorded.

    torch.cond, while_loop, map    Dynamo turns their bodies into graphs; it gives up when it sees
                                   modes it does not know, so ours step aside for that long
    autograd.Function.apply        never reaches `Watch`: real weights become fake ones here
    torch.compile'd modules        are called as they are; the whole step is compiled anyway

All of it applies to the recording thread only (`current()` tells); other threads see no change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch._higher_order_ops.utils
import torch.overrides
import torch.utils._pytree as pytree
from torch.utils import _python_dispatch

from pantile.capture.fake import HostConstants
from pantile.capture.scopes import without_module_scopes
from pantile.capture.watch import Watch
from pantile.errors import CaptureError
from pantile.ops.context import current

# Not typed: torch's own annotations of these are incomplete.
_hop: Any = torch._higher_order_ops.utils
_overrides: Any = torch.overrides
_function: Any = torch.autograd.Function


@contextmanager
def redirected(watch: Watch) -> Iterator[None]:
    """Take the other ways until the block ends."""
    with ExitStack() as stack:
        stack.enter_context(_functions_exchanged(watch))
        stack.enter_context(_bodies_without_our_modes())
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            stack.enter_context(dynamo.config.patch(error_on_nested_fx_trace=False))
        yield


@contextmanager
def _functions_exchanged(watch: Watch) -> Iterator[None]:
    original = _function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is not None:
            args, kwargs = watch.exchanged(args, kwargs)
        return original.__func__(cls, *args, **kwargs)

    _function.apply = classmethod(apply)
    try:
        yield
    finally:
        _function.apply = original


@contextmanager
def _bodies_without_our_modes() -> Iterator[None]:
    original = _hop._hop_compile_and_call

    def call(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        if current() is None:
            return original(function, args, kwargs)
        _refuse_training_through_while_loop(function, args)
        with _modes_aside(), without_module_scopes():
            return original(function, args, kwargs)

    _hop._hop_compile_and_call = call
    try:
        yield
    finally:
        _hop._hop_compile_and_call = original


def _refuse_training_through_while_loop(function: Callable[..., Any], args: Any) -> None:
    if "while_loop" not in function.__qualname__ or not torch.is_grad_enabled():
        return
    tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors):
        raise CaptureError(
            "torch.while_loop cannot be trained through: its backward would need a tensor for "
            "each of an unknown number of turns",
            fix="use poptorch.for_loop(count, body, inputs), whose count is fixed, or detach() "
            "what the loop reads",
        )


@contextmanager
def _modes_aside() -> Iterator[None]:
    """Take our own modes off the tops of torch's two stacks, and put them back."""
    function_modes: list[Any] = []
    dispatch_modes: list[Any] = []
    while isinstance(_overrides._get_current_function_mode(), Watch):
        function_modes.append(_overrides._pop_mode())
    while isinstance(_python_dispatch._get_current_dispatch_mode(), HostConstants):
        dispatch_modes.append(_python_dispatch._pop_mode())
    try:
        yield
    finally:
        for mode in reversed(dispatch_modes):
            _python_dispatch._push_mode(mode)
        for mode in reversed(function_modes):
            _overrides._push_mode(mode)
