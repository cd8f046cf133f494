"""Text form of a module that shows its blocks."""

from __future__ import annotations

import builtins
from typing import Any

from torch import nn


def module_repr(module: nn.Module) -> str:
    """Like `repr(module)`, with the forward pre-hooks of each module in front of it."""
    hooks = "".join(f"{hook!r} " for hook in module._forward_pre_hooks.values())
    extra = module.extra_repr()
    children = [
        f"({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in module._modules.items()
        if child is not None
    ]
    lines = [*extra.split("\n"), *children] if extra else children
    head = f"{hooks}{type(module).__name__}("
    if not children and len(lines) <= 1:
        return head + "".join(lines) + ")"
    return head + "\n  " + "\n  ".join(lines) + "\n)"


def print(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Print `module_repr(module)`; further arguments go to Python's own `print`."""
    builtins.print(module_repr(module), *args, **kwargs)
