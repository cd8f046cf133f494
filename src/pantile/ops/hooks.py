"""Functions to run before and after each compilation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

from pantile.errors import HookError

Hook = Callable[[], None]

_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Call `hook()` before each compilation, until `remove()` is called on the result."""
    return _register(_before, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Call `hook()` after each compilation, until `remove()` is called on the result."""
    return _register(_after, hook)


def run_pre_compile_hooks() -> None:
    """Call what was registered for before a compilation, in order of registration."""
    for hook in tuple(_before.values()):
        hook()


def run_post_compile_hooks() -> None:
    """Call what was registered for after a compilation, in order of registration."""
    for hook in tuple(_after.values()):
        hook()


def _register(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise HookError(
            f"hook={hook!r} must be callable", fix="pass a function that takes no arguments"
        )
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
