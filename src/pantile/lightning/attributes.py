"""What a step reads and changes besides tensors of the model, in a program run many times.

self.beta            read: part of the fingerprint; another value, another program, in which a
                     number is an input
self.seen += 1       a number the step changes: an input, and changed again after each run
self.hidden = h      tensors the step replaces: inputs, and replaced again after each run
self.losses.append   lists, dicts, sets: put back after the recording, changed after each run

`user_state` says where all of this may be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses import FakeTensor

from pantile.capture.tracked import Facts, is_tracked
from pantile.lightning.contents import record_content
from pantile.lightning.tape import Deferred, Tape
from pantile.lightning.user_state import LONGEST, Place, user_state
from pantile.runtime.held_objects import still_holds

_MISSING = object()
_PLAIN = (int, float, bool, str, bytes, type(None))
_EXCHANGED = frozenset({"log", "log_dict", "print"})
_INTERNAL = (frozenset(vars(nn.Module())) - {"training"}) | {"destroy"}


@dataclass(frozen=True)
class Fed:
    """The attributes that a program is given as inputs, by `path:name`."""

    numbers: frozenset[str] = frozenset()
    tensors: tuple[str, ...] = ()

    def more(self, numbers: Iterable[str], tensors: Iterable[str]) -> Fed:
        """With further ones."""
        return Fed(self.numbers | set(numbers), tuple(dict.fromkeys((*self.tensors, *tensors))))


class MoreInputs(Exception):
    """The step changes further attributes: record it again, with them as inputs."""

    def __init__(self, fed: Fed) -> None:
        super().__init__("the step is recorded again with more inputs")
        self.fed = fed


class Attributes:
    """All that is the user's in a module, its children, and what they reach."""

    def __init__(
        self, module: nn.Module, internal: frozenset[str], observers: Iterable[Any] = ()
    ) -> None:
        self._internal = _INTERNAL | internal
        self.observers = tuple(observers)
        state = user_state(module, self.observers)
        self.tables, self.contents = state.tables, state.contents
        self._kinds = {path: type(child) for path, child in module.named_modules()}

    def names(self, path: str) -> list[Any]:
        """The user's names in one table."""
        table = self.tables[path]
        hidden: frozenset[str] = frozenset()
        if table.of_module:
            hidden = _EXCHANGED | self._internal
        elif any(table.values is vars(observer) for observer in self.observers):
            hidden = _EXCHANGED
        return [name for name in table.values if name not in hidden]

    def value(self, name: str) -> Any:
        """An attribute by `path:name`, as it is now."""
        path, _, key = name.partition(":")
        values = _found(self.tables[path].place)
        if isinstance(values, dict) and key in values:
            return values[key]
        return self.of_class(path, key)

    def of_class(self, path: str, key: Any) -> Any:
        """What the class says where the instance says nothing."""
        kind = self._kinds.get(path)
        return _MISSING if kind is None else getattr(kind, key, _MISSING)

    def leaves(self, name: str) -> list[torch.Tensor]:
        """The tensors of an attribute that is one, or is made of some."""
        return [leaf for leaf in pytree.tree_leaves(self.value(name)) if _is_real_tensor(leaf)]


def _found(place: Place) -> Any:
    try:
        return place()
    except (KeyError, IndexError, TypeError, AttributeError):  # the way there is gone
        return _MISSING


class Fingerprint:
    """What a recording may have read of the attributes: numbers, flags, texts, used tensors."""

    def __init__(self, attributes: Attributes, fed: Fed) -> None:
        self._attributes, self._fed = attributes, fed
        skipped = {*fed.numbers, *fed.tensors}
        self._entries = {
            path: {
                key: _frozen(table.values[key])
                for key in attributes.names(path)
                if f"{path}:{key}" not in skipped and _is_compared(table.values[key])
            }
            for path, table in attributes.tables.items()
            if table.of_module or len(table.values) <= LONGEST
        }
        self._kinds = {name: _kind_of(attributes.value(name)) for name in fed.tensors}
        self._settle()

    def settle_used(self, used: Mapping[int, Any], made: Iterable[tuple[str, Any]]) -> None:
        """Forget tensors that the recording did not use; require what it made not to be there."""
        for path, key in made:
            if path in self._entries:
                self._entries[path][key] = _MISSING
        for values in self._entries.values():
            for key, value in list(values.items()):
                if _tensors(value) and not any(id(t) in used for t in _tensors(value)):
                    del values[key]
        self._settle()

    def _settle(self) -> None:
        tables = self._attributes.tables
        modules = [table.values for path, table in tables.items() if path and table.of_module]
        self._modules_hold = still_holds(modules)
        self._others = [
            (tables[path].place, values)
            for path, values in self._entries.items()
            if values and not (path and tables[path].of_module)
        ]
        self._containers = [(place, type(value)) for place, value in self._attributes.contents]

    def holds(self) -> bool:
        """Does the module look as it did?"""
        value = self._attributes.value
        if not all(_kind_of(value(name)) == kind for name, kind in self._kinds.items()):
            return False
        if not all(type(_found(place)) is kind for place, kind in self._containers):
            return False
        if not all(_same(_found(place), values) for place, values in self._others):
            return False
        if self._modules_hold():
            return True
        tables = self._attributes.tables
        if not all(_same(tables[path].values, v) for path, v in self._entries.items() if path):
            return False
        self._settle()
        return True

    def differences(self) -> list[str]:
        """The attributes that are not what they were, by name."""
        found = []
        for path, values in self._entries.items():
            now = _found(self._attributes.tables[path].place)
            table = now if isinstance(now, dict) else {}
            changed = [k for k, then in values.items() if not _equal(table.get(k, _MISSING), then)]
            found += [f"{path}.{key}".strip(".") for key in changed]
        return found

    def with_differences(self) -> Fed | None:
        """What would have to be an input for this recording to fit; None if that cannot help."""
        numbers, tensors = [], []
        for path, values in self._entries.items():
            now = _found(self._attributes.tables[path].place)
            for key, then in values.items():
                value = now.get(key, _MISSING) if isinstance(now, dict) else _MISSING
                if _equal(value, then):
                    continue
                if type(value) in (int, float) and type(value) is type(then) and type(key) is str:
                    numbers.append(f"{path}:{key}")
                elif _tensors(then) and _kind_of(value) == _kind_of(then) and type(key) is str:
                    tensors.append(f"{path}:{key}")
                else:
                    return None
        return self._fed.more(numbers, tensors) if numbers or tensors else None


def _same(table: Any, values: Mapping[Any, Any]) -> bool:
    if not isinstance(table, dict):
        return False
    return all(_equal(table.get(key, _MISSING), value) for key, value in values.items())


def _is_compared(value: Any) -> bool:
    return type(value) in _PLAIN or bool(_tensors(value))


def _tensors(value: Any) -> list[torch.Tensor]:
    """Of a tensor, or a short tuple or list with some."""
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in (tuple, list) and len(value) <= LONGEST:
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _frozen(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _kind_of(value: Any) -> Any:
    """What must be the same of tensors that are inputs."""
    leaves, structure = pytree.tree_flatten(value)
    kinds = [(t.shape, t.dtype) if isinstance(t, torch.Tensor) else type(t) for t in leaves]
    return structure, kinds


def _equal(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) in _PLAIN:
        return type(now) is type(then) and bool(now == then)
    if type(then) is tuple and type(now) in (tuple, list) and len(now) == len(then):
        return all(_equal(a, b) for a, b in zip(now, then, strict=True))
    return False


class Exchange:
    """The attributes during one recording."""

    def __init__(
        self, attributes: Attributes, fed: Fed, facts: Facts, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._attributes, self._fed = attributes, fed
        self._before = {
            path: {key: table.values[key] for key in attributes.names(path)}
            for path, table in attributes.tables.items()
        }
        #: The names that the step made, by path.
        self.made: list[tuple[str, Any]] = []
        self._contents = [(place, v, copy.copy(v)) for place, v in attributes.contents]
        rest = iter(tensors)
        self._given: dict[str, Any] = {name: self._like(name, rest) for name in fed.tensors}
        self._given |= {name: facts.number(name) for name in sorted(fed.numbers)}
        for name, value in self._given.items():
            path, _, key = name.partition(":")
            attributes.tables[path].values[key] = value

    def _like(self, name: str, tensors: Iterator[torch.Tensor]) -> Any:
        """The attribute with the program's tensors in it."""

        def leaf(value: Any) -> Any:
            return next(tensors) if _is_real_tensor(value) else value

        return pytree.tree_map(leaf, self._attributes.value(name))

    def record(self, tape: Tape) -> None:
        """Make events of what the step changed; MoreInputs if it must be recorded again."""
        numbers: list[str] = []
        tensors: list[str] = []
        for path, table in self._attributes.tables.items():
            for key, before in self._changed(path):
                name, value = f"{path}:{key}", table.values[key]
                can_be_fed = type(key) is str and name not in self._given
                if can_be_fed and type(before) in (int, float):
                    numbers.append(name)
                elif can_be_fed and any(_is_real_tensor(t) for t in _tensors(before)):
                    tensors.append(name)
                elif _can_be_kept(value):
                    tape.add(_set, (table.place, key, value), {})
            for key in self._before[path].keys() - table.values.keys():
                tape.add(_remove, (table.place, key), {})
        for place, value, before in self._contents:
            record_content(tape, place, value, before)
        if numbers or tensors:
            raise MoreInputs(self._fed.more(numbers, tensors))

    def _changed(self, path: str) -> Iterator[tuple[Any, Any]]:
        """The names of a table that the step bound to something else, and what they were."""
        values = self._attributes.tables[path].values
        for key in self._attributes.names(path):
            before = self._value_before(path, key)
            if values[key] is not self._given.get(f"{path}:{key}", before):
                if key not in self._before[path]:
                    self.made.append((path, key))
                yield key, before

    def _value_before(self, path: str, key: Any) -> Any:
        before = self._before[path].get(key, _MISSING)
        return self._attributes.of_class(path, key) if before is _MISSING else before

    def put_back(self) -> None:
        """Leave the attributes as they were."""
        for path, table in self._attributes.tables.items():
            before = self._before[path]
            for key in self._attributes.names(path):
                if key not in before:
                    del table.values[key]
            dict.update(table.values, before)  # a Counter would add
        for _, value, before in self._contents:
            value.clear()
            value.update(before) if isinstance(value, set) else value.extend(before)


def _set(place: Place, key: Any, value: Any) -> None:
    place()[key] = value


def _remove(place: Place, key: Any) -> None:
    place().pop(key, None)


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
