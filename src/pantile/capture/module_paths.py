"""Which module an op belongs to, for reports: `encoder.layer.3.attention`.

While forward is recorded, the path of the module that runs is kept in the metadata torch.fx copies
to each node (`nn_module_stack`). Backward nodes find theirs through the sequence number they share
with the forward op, as they find their stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx import traceback as fx_traceback
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from pantile.ops.context import Recorder, current

_KEY = "nn_module_stack"


@contextmanager
def module_paths(root: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Note the running module in every node that `recorder`'s capture records in this scope."""
    names = {id(module): name for name, module in root.named_modules()}
    if any(type(module).__name__ == "OptimizedModule" for module in root.modules()):
        yield  # torch warns of global hooks when a module it compiled is called: no names then
        return
    outer: list[Any] = []

    def enter(module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():  # torch.cond inlines hooks: there is nothing to inline
            return
        if current() is not recorder or id(module) not in names:
            return
        outer.append(fx_traceback.current_meta.get(_KEY))
        fx_traceback.current_meta[_KEY] = {names[id(module)]: type(module).__name__}

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if current() is not recorder or id(module) not in names or not outer:
            return
        before = outer.pop()
        if before is None:
            fx_traceback.current_meta.pop(_KEY, None)
        else:
            fx_traceback.current_meta[_KEY] = before

    # Global hooks see the modules of all threads; `current()` tells which ones are being captured.
    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave),
    ]
    try:
        yield
    finally:
        fx_traceback.current_meta.pop(_KEY, None)
        for handle in handles:
            handle.remove()


def module_of(node: fx.Node) -> str:
    """The path noted for a node; the root module's is empty."""
    stack = node.meta.get(_KEY)
    return next(reversed(stack), "") if stack else ""
