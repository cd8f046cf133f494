"""The plain Python attributes of a module, in a step that is recorded once and run many times.

self.beta            read: part of the fingerprint; another value, another program
self.seen += 1       a number the step changes: an input, and changed again after each run
self.hidden = h      a tensor the step replaces: an input, and replaced again after each run
self.losses.append   lists and dicts: put back after the recording, changed after each run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses import FakeTensor

from pantile.capture.tracked import Facts, is_tracked
from pantile.lightning.tape import Deferred, Tape
from pantile.runtime.held_objects import still_holds

_MISSING = object()
_PLAIN = (int, float, bool, str, bytes, type(None))
_LIBRARIES = ("torch.", "lightning.", "pytorch_lightning.", "torchmetrics.", "builtins")
_INTERNAL = (frozenset(vars(nn.Module())) - {"training"}) | {"destroy", "log"}


@dataclass(frozen=True)
class Fed:
    """The attributes that a program is given as inputs, by `path:name`."""

    numbers: frozenset[str] = frozenset()
    tensors: tuple[str, ...] = ()


class MoreInputs(Exception):
    """The step changes further attributes: record it again, with them as inputs."""

    def __init__(self, fed: Fed) -> None:
        super().__init__("the step is recorded again with more inputs")
        self.fed = fed


class Attributes:
    """All attributes of a module and its children that are the user's."""

    def __init__(self, module: nn.Module, internal: frozenset[str]) -> None:
        self._internal = _INTERNAL | internal
        self.tables: dict[str, dict[str, Any]] = dict(_tables(module))
        self._kinds = {path: type(child) for path, child in module.named_modules()}

    def names(self, path: str) -> list[str]:
        """The user's names in one table."""
        return [name for name in self.tables[path] if name not in self._internal]

    def value(self, name: str) -> Any:
        """An attribute by `path:name`."""
        path, _, key = name.partition(":")
        table = self.tables[path]
        return table[key] if key in table else self.of_class(path, key)

    def of_class(self, path: str, key: str) -> Any:
        """What the class says where the instance says nothing."""
        return getattr(self._kinds.get(path), key, _MISSING)

    def numbers(self, names: frozenset[str]) -> Mapping[str, Any]:
        """The present values of numbers that are fed."""
        return {name: self.value(name) for name in names}


def _tables(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    from torchmetrics import Metric, MetricCollection

    for path, child in module.named_modules():
        if isinstance(child, (Metric, MetricCollection)):
            continue
        yield path, vars(child)
        for kind in type(child).__mro__:
            shared = {k: v for k, v in vars(kind).items() if type(v) in (list, dict)}
            if shared and not kind.__module__.startswith(_LIBRARIES):
                yield f"{path}@{kind.__qualname__}", shared


class Fingerprint:
    """What a recording may have read of the attributes: numbers, flags, texts, tensors."""

    def __init__(self, attributes: Attributes, fed: Fed) -> None:
        self._attributes = attributes
        skipped = {*fed.numbers, *fed.tensors}
        self._values = [
            (table, key, table[key])
            for path, table in attributes.tables.items()
            for key in attributes.names(path)
            if f"{path}:{key}" not in skipped and _is_compared(table[key])
        ]
        self._settle()

    def _settle(self) -> None:
        tables = self._attributes.tables.items()
        children = [table for path, table in tables if path and "@" not in path]
        self._children_hold = still_holds(children)
        root = self._attributes.tables[""]
        self._own = [(key, value) for table, key, value in self._values if table is root]

    def holds(self) -> bool:
        """Does the module look as it did?"""
        root = self._attributes.tables[""]
        if self._children_hold() and all(root.get(key) is value for key, value in self._own):
            return True
        if not all(_equal(t.get(key, _MISSING), value) for t, key, value in self._values):
            return False
        self._settle()
        return True


def _is_compared(value: Any) -> bool:
    return type(value) in _PLAIN or isinstance(value, torch.Tensor)


def _equal(now: Any, then: Any) -> bool:
    if now is then:
        return True
    return type(now) is type(then) and type(now) in _PLAIN and bool(now == then)


class Exchange:
    """The attributes during one recording."""

    def __init__(
        self, attributes: Attributes, fed: Fed, facts: Facts, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._attributes, self._fed = attributes, fed
        self._before = {
            path: {key: (table[key], _copied(table[key])) for key in attributes.names(path)}
            for path, table in attributes.tables.items()
        }
        self._given: dict[str, Any] = dict(zip(fed.tensors, tensors, strict=True))
        self._given |= {name: facts.number(name) for name in sorted(fed.numbers)}
        for name, value in self._given.items():
            path, _, key = name.partition(":")
            attributes.tables[path][key] = value

    def record(self, tape: Tape) -> None:
        """Make events of what the step changed; MoreInputs if it must be recorded again."""
        numbers: set[str] = set()
        tensors: list[str] = []
        for path, table in self._attributes.tables.items():
            for key in self._attributes.names(path):
                before, content = self._before[path].get(key, (_MISSING, None))
                if before is _MISSING:
                    before = self._attributes.of_class(path, key)
                value, name = table[key], f"{path}:{key}"
                if value is self._given.get(name, before):
                    if content is not None:
                        _record_content(tape, value, content)
                elif name not in self._given and type(before) in (int, float):
                    numbers.add(name)
                elif name not in self._given and _is_real_tensor(before):
                    tensors.append(name)
                elif _can_be_kept(value):
                    tape.add(_set, (_Table(table), key, value), {})
        if numbers or tensors:
            fed = self._fed
            raise MoreInputs(Fed(fed.numbers | numbers, (*fed.tensors, *tensors)))

    def put_back(self) -> None:
        """Leave the attributes as they were."""
        for path, table in self._attributes.tables.items():
            before = self._before[path]
            for key in self._attributes.names(path):
                if key not in before:
                    del table[key]
            for key, (value, content) in before.items():
                table[key] = value
                if isinstance(content, list):
                    value[:] = content
                elif isinstance(content, dict):
                    value.clear()
                    value.update(content)


class _Table:
    """A dict that is not taken apart as a nested value."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table


def _set(holder: _Table, key: str, value: Any) -> None:
    holder.table[key] = value


def _remove(holder: _Table, key: str) -> None:
    holder.table.pop(key, None)


def _is_real_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _can_be_kept(value: Any) -> bool:
    """Can it be built again with the values of a run? Not an object that hides fake tensors."""
    return not any(_hides_fakes(leaf) for leaf in pytree.tree_leaves(value))


def _hides_fakes(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor) or is_tracked(leaf) or type(leaf) is Deferred:
        return False
    inner: dict[str, Any] = getattr(leaf, "__dict__", {})
    return any(isinstance(value, FakeTensor) for value in inner.values())


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict) else None


def _record_content(tape: Tape, value: Any, before: Any) -> None:
    """Make events of what was done to a list or dict."""
    if isinstance(value, dict):
        holder = _Table(value)
        for key, item in value.items():
            if before.get(key, _MISSING) is not item:
                tape.add(_set, (holder, key, item), {})
        for key in before:
            if key not in value:
                tape.add(_remove, (holder, key), {})
        return
    kept = len(before)
    if len(value) < kept or any(a is not b for a, b in zip(value, before, strict=False)):
        act: Callable[..., None] = value.clear
        tape.add(act, (), {})
        kept = 0
    for item in value[kept:]:
        tape.add(value.append, (item,), {})
