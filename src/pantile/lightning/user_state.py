"""Where a step can keep things: every dict, list and object that it reaches by its own names.

    self.beta, self.layer.scale           attributes of modules
    self.stats["loss"], self.config.rate  dicts and plain objects they hold, at any depth
    losses.append(loss)                   lists and dicts of enclosing functions and of the script

A *table* is a dict of named values: the attributes of a module or an object, or a dict itself.
They are found when a step is recorded. What libraries keep for themselves is left alone.
"""

from __future__ import annotations

import argparse
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

_LIBRARIES = (
    *("torch.", "lightning.", "pytorch_lightning.", "torchmetrics.", "lightning_fabric."),
    *("builtins", "functools", "collections", "typing", "abc", "dataclasses", "contextlib"),
    *("pantile.", "poptorch.", "unittest.", "logging"),
)
_SETTINGS = (types.SimpleNamespace, argparse.Namespace)
CONTAINERS = (list, dict, set, deque)
_DEEPEST, _MOST_TABLES = 5, 512
LONGEST = 256
"""Of a dict or list with more items, what it holds is not looked at."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_MODULES = frozenset(vars(nn.Module()))

Place = Callable[[], Any]
"""Finds a value again, by the names that lead to it: hooks may have put another one there."""


@dataclass(frozen=True, eq=False)
class Table:
    """A dict of named values, and the way to it."""

    place: Place
    values: dict[Any, Any]
    of_module: bool = False


@dataclass(frozen=True, eq=False)
class UserState:
    """The tables by path; the lists, deques and sets that are in them, each with the way to it."""

    tables: dict[str, Table]
    contents: list[tuple[Place, Any]]


def is_metric(value: Any) -> bool:
    """Metrics keep their state themselves: they run on the host."""
    from torchmetrics import Metric, MetricCollection

    return isinstance(value, (Metric, MetricCollection))


def user_state(module: nn.Module, observers: Iterable[Any] = ()) -> UserState:
    """What there is now. `observers` are further objects whose code runs within the step."""
    search = _Search()
    for path, child in module.named_modules():
        if not is_metric(child) and isinstance(vars(child).get("_parameters"), dict):
            search.add_table(path, partial(vars, child), of_module=True)
            search.add_surroundings(path, child)
    for i, observer in enumerate(observers):
        search.add_table(f"callback {i}", partial(vars, observer))
        search.add_surroundings(f"callback {i}", observer)
    if isinstance(getattr(module, "_hparams", None), dict):
        search.add_table("hparams", lambda: module._hparams)
    return search.result()


class _Search:
    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}
        self._contents: list[tuple[Place, Any]] = []
        self._known: set[int] = set()
        self._waiting: list[tuple[str, Place, Any, int]] = []

    def add_table(self, path: str, place: Place, depth: int = 0, of_module: bool = False) -> None:
        values = place()
        if id(values) in self._known or len(self._tables) == _MOST_TABLES:
            return
        self._known.add(id(values))
        self._tables[path] = Table(place, values, of_module)
        if depth == _DEEPEST or len(values) > LONGEST:
            return
        for key, value in values.items():
            if not (of_module and key in _OF_MODULES):
                self._waiting.append((f"{path}/{_name(key)}", _item(place, key), value, depth + 1))

    def result(self) -> UserState:
        for path, place, value, depth in self._waiting:  # grows meanwhile
            self._look_into(path, place, value, depth)
        return UserState(self._tables, self._contents)

    def _look_into(self, path: str, place: Place, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self.add_table(path, place, depth)
        elif isinstance(value, (list, set, deque)) and id(value) not in self._known:
            self._known.add(id(value))
            self._contents.append((place, value))
        elif _is_plain_object(value):
            self.add_table(path, lambda: vars(place()), depth)
        if isinstance(value, (list, tuple, deque)) and len(value) <= LONGEST and depth < _DEEPEST:
            for i, item in enumerate(value):
                if isinstance(item, (tuple, *CONTAINERS)) or _is_plain_object(item):
                    self._waiting.append((f"{path}/{i}", _item(place, i), item, depth + 1))

    def add_surroundings(self, path: str, owner: Any) -> None:
        """The containers of the owner's class, and of functions and scripts around its code."""
        for kind in type(owner).__mro__:
            if _is_library(kind) or id(kind) in self._known:
                continue
            self._known.add(id(kind))
            for key, value in vars(kind).items():
                if isinstance(value, CONTAINERS):
                    place = _of_class(owner, kind, key)
                    self._waiting.append((f"{path}@{kind.__qualname__}.{key}", place, value, 1))
        for function in _functions(owner, self._known):
            for name, place in _outside(function):
                self._waiting.append((f"{path}@{function.__qualname__}.{name}", place, place(), 1))


def _item(place: Place, key: Any) -> Place:
    return lambda: place()[key]


def _of_class(owner: Any, kind: type, key: str) -> Place:
    """A container of a class; a hook may give the owner one of its own, `self.losses = []`."""
    place = _item(partial(vars, kind), key)
    if key in vars(owner):  # it has already: what a step reaches by the class is the class's
        return place
    return lambda: vars(owner)[key] if key in vars(owner) else place()


def _name(key: Any) -> str:
    return str(key).replace(":", "_")


# Functions and what is around them


def _functions(owner: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """The Python functions that may run when a module or callback is used."""
    kinds = [kind for kind in type(owner).__mro__ if not _is_library(kind)]
    members: list[Any] = [member for kind in kinds for member in vars(kind).values()]
    members += vars(owner).values()
    for name in _HOOKS:
        members += (vars(owner).get(name) or {}).values()
    for member in members:
        yield from _plain_functions(member, seen)


def _plain_functions(value: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, partial):
        for part in (value.func, *value.args):
            yield from _plain_functions(part, seen)
        return
    if isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        if not (value.__module__ or "").startswith(_LIBRARIES):
            yield value
            for cell in value.__closure__ or ():
                yield from _plain_functions(_content(cell), seen)


def _outside(function: types.FunctionType) -> Iterator[tuple[str, Place]]:
    """The containers that a function reaches by names which are not its own."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        value = _content(cell)
        if isinstance(value, CONTAINERS) or _is_plain_object(value):
            yield name, partial(_content, cell)
    for name in _names(function.__code__):
        if isinstance(function.__globals__.get(name), CONTAINERS):
            yield name, partial(function.__globals__.__getitem__, name)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(_LIBRARIES)


def _is_plain_object(value: Any) -> bool:
    """A plain object of the user's, or of the kinds that hold settings."""
    if isinstance(value, (torch.Tensor, nn.Module, type, types.FunctionType, types.ModuleType)):
        return False
    if not isinstance(getattr(value, "__dict__", None), dict) or is_metric(value):
        return False
    return isinstance(value, _SETTINGS) or not _is_library(type(value))
