"""Which module and which `NameScope` an op was recorded in.

    forward of `layer1`  ─►  forward of `layer1.0`  ─►  conv            layer1/0
                         ─►  with NameScope("head") ─►  add             layer1/head

The path is written into the metadata of the nodes when a scope begins or ends: everything that was
recorded since the last change belongs to the path that was in force until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from pantile.ops.context import current
from pantile.program.spec import MULTI_CONV

SCOPE = "pantile_scope"
"""The key of a node's metadata: a `Scope`."""


@dataclass(frozen=True)
class Scope:
    """A path such as `layer1/0`, and the attributes of the `Attribute` scopes round it."""

    path: str
    attributes: tuple[tuple[str, str], ...] = ()


class ScopeMarks:
    """The scopes that are open, and the graph whose nodes they are written to."""

    def __init__(self) -> None:
        self._graph: fx.Graph | None = None
        self._open: list[tuple[str, Any]] = []
        self._groups = 0

    def follow(self, graph: fx.Graph) -> None:
        """Mark the nodes of this graph."""
        self._graph = graph

    def push(self, kind: str, value: Any) -> None:
        """A scope begins: of a `module`, a `name`, `attributes`, or a `multi_conv`."""
        self.flush()
        if kind == "multi_conv":
            self._groups += 1
            value = self._groups
        self._open.append((kind, value))

    def pop(self, kind: str) -> None:
        """The latest scope of that kind ends."""
        self.flush()
        for place in reversed(range(len(self._open))):
            if self._open[place][0] == kind:
                del self._open[place]
                return

    def flush(self) -> None:
        """Give the nodes recorded since the last change the path they were recorded in."""
        if self._graph is None:
            return
        scope = Scope(_path(self._open), _attributes(self._open))
        for node in reversed(self._graph.nodes):
            if SCOPE in node.meta:
                break
            node.meta[SCOPE] = scope


def _path(scopes: Sequence[tuple[str, Any]]) -> str:
    """Names opened before the first module, the innermost module, names opened after the first."""
    before: list[str] = []
    after: list[str] = []
    module = ""
    for kind, value in scopes:
        if kind == "module":
            module = value.replace(".", "/") or module
        elif kind == "name":
            (after if module else before).append(value)
    return "/".join(part for part in (*before, module, *after) if part)


def _attributes(scopes: Sequence[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for kind, value in scopes:
        if kind == "attributes":
            for name, entries in value.items():
                found |= {f"{name}/{key}": str(entry) for key, entry in entries.items()}
        elif kind == "multi_conv":
            found[MULTI_CONV] = str(value)
    return tuple(found.items())


@contextmanager
def module_scopes(marks: ScopeMarks, module: nn.Module | None) -> Iterator[None]:
    """Every module that is called on this thread opens a scope; with None, no module does.

    torch's hooks for all modules are used, not hooks of these modules: some modules of torch look
    for their own hooks, and take a slower way when they find one.
    """
    paths = {} if module is None else {id(m): path for path, m in module.named_modules()}
    recorder = current()

    def enter(child: nn.Module, args: Any) -> None:
        if current() is recorder:
            marks.push("module", paths.get(id(child), ""))

    def leave(child: nn.Module, args: Any, result: Any) -> None:
        if current() is recorder:
            marks.pop("module")

    hooks = _Hooks(enter, leave)
    _installed.append(hooks)
    hooks.install()
    try:
        yield
    finally:
        marks.flush()
        hooks.remove()
        _installed.remove(hooks)


class _Hooks:
    """Hooks of all modules that can be taken off and put on again."""

    def __init__(self, enter: Callable[..., None], leave: Callable[..., None]) -> None:
        self._enter, self._leave = enter, leave
        self._handles: list[RemovableHandle] = []

    def install(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


_installed: list[_Hooks] = []
"""Those of the captures that are running; the capture lock lets one run at a time."""


@contextmanager
def without_module_scopes() -> Iterator[None]:
    """Take the hooks off: Dynamo would record what they do as part of the model."""
    for hooks in _installed:
        hooks.remove()
    try:
        yield
    finally:
        for hooks in _installed:
            hooks.install()
