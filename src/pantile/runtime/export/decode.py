"""Plain data back to Python values: the other half of `encode`.

    reader = Reader(records, tensors, paths)
    model = reader.value({"r": 0})

Nothing in the data is code. A class is found by its import path, if `Paths` allows it; its
objects are made without `__init__`. Containers are made empty first and filled in later, so
cycles and deep nests need no recursion. State that a class wants to see whole (`__setstate__`) is
given to it at the very end, the innermost object first.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from pantile.runtime.export import modules, objects
from pantile.runtime.export.paths import Paths
from pantile.runtime.export.tensors import make_tensor

_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


class Reader:
    """Makes the values of one file."""

    def __init__(
        self,
        records: Sequence[Any],
        rows: Sequence[Any],
        stored: Mapping[str, torch.Tensor],
        paths: Paths,
    ) -> None:
        self._records = records
        self._rows = rows
        self._stored = stored
        self._paths = paths
        self._made: dict[int, Any] = {}
        self._begun: set[int] = set()
        self._to_fill: deque[Callable[[], None]] = deque()
        self._to_finish: list[Callable[[], None]] = []

    def trust_modules(self) -> None:
        """Also take names from the packages that the module classes of the file are from."""
        for record in self._records:
            if record[0] == "module":
                self._paths.trust(self._paths.find_class(record[1], nn.Module))

    def value(self, data: Any) -> Any:
        """The value of some data, with all it refers to."""
        made = self._decode(data)
        while self._to_fill:
            self._to_fill.popleft()()
        while self._to_finish:
            self._to_finish.pop()()
        return made

    def _decode(self, data: Any) -> Any:
        if data is None or isinstance(data, bool | int | str):
            return data
        if "f" in data:
            return float.fromhex(data["f"])
        number = data["r"]
        if type(number) is not int or number < 0:
            raise ValueError(f"record {number!r}")
        if number not in self._made:
            if number in self._begun:
                raise ValueError(f"record {number} contains itself")
            self._begun.add(number)
            kind, *parts = self._records[number]
            self._made[number] = _MAKERS[kind](self, *parts)
        return self._made[number]

    def _all(self, items: Sequence[Any]) -> list[Any]:
        return [self._decode(item) for item in items]

    def _dict(self, pairs: Sequence[Any]) -> dict[Any, Any]:
        return {self._decode(key): self._decode(value) for key, value in pairs}

    # Containers: made empty, filled later

    def _list(self, items: Sequence[Any]) -> list[Any]:
        made: list[Any] = []
        self._to_fill.append(lambda: made.extend(self._all(items)))
        return made

    def _set(self, items: Sequence[Any]) -> set[Any]:
        made: set[Any] = set()
        self._to_fill.append(lambda: made.update(self._all(items)))
        return made

    def _deque(self, items: Sequence[Any], length: int | None) -> deque[Any]:
        made: deque[Any] = deque(maxlen=length)
        self._to_fill.append(lambda: made.extend(self._all(items)))
        return made

    def _mapping(self, pairs: Sequence[Any], kind: str, factory: Any) -> Any:
        made: Any
        if kind == "defaultdict":
            make = self._decode(factory)
            made = defaultdict(make)
        else:
            made = _DICTS[kind]()
        self._to_fill.append(lambda: made.update(self._dict(pairs)))
        return made

    def _namespace(self, attributes: Sequence[Any]) -> SimpleNamespace:
        made = SimpleNamespace()
        self._to_fill.append(lambda: vars(made).update(self._dict(attributes)))
        return made

    # What is found by name

    def _partial(self, function: Any, args: Sequence[Any], keywords: Sequence[Any]) -> Any:
        return functools.partial(self._decode(function), *self._all(args), **self._dict(keywords))

    def _enum(self, path: str, value: Any) -> Enum:
        made: Enum = self._paths.find_class(path, Enum)(self._decode(value))
        return made

    def _named_tuple(self, path: str, items: Sequence[Any]) -> Any:
        cls = self._paths.find_class(path, tuple)
        values = self._all(items)
        if len(values) != len(cls._fields):
            raise ValueError(f"{path} has {len(cls._fields)} fields, not {len(values)}")
        return tuple.__new__(cls, values)

    def _method(self, owner: Any, name: str) -> Any:
        made = self._decode(owner)
        if not name.isidentifier() or name.startswith("__"):
            raise ValueError(f"method {name!r}")
        found = getattr(made, name)
        if not isinstance(found, MethodType) or found.__self__ is not made:
            raise ValueError(f"{name!r} is no method")
        return found

    def _object(self, path: str, state: Sequence[Any], items: Any) -> Any:
        made = objects.new_object(self._paths.find_class(path))

        def fill() -> None:
            whole = self._dict(state)
            if isinstance(made, dict):
                dict.update(made, self._dict(items))
            elif isinstance(made, list):
                list.extend(made, self._all(items))
            self._to_finish.append(lambda: objects.set_state(made, whole))

        self._to_fill.append(fill)
        return made

    def _module(self, path: str, state: Sequence[Any], parametrised: bool) -> nn.Module:
        made = modules.new_module(self._paths.find_class(path, nn.Module))

        def fill() -> None:
            whole = self._dict(state)
            self._to_finish.append(
                lambda: modules.set_module_state(made, whole, parametrised=parametrised)
            )

        self._to_fill.append(fill)
        return made

    def _optimizer(self, path: str, state: Sequence[Any]) -> torch.optim.Optimizer:
        cls = self._paths.find_class(path, torch.optim.Optimizer)
        made: torch.optim.Optimizer = object.__new__(cls)

        def fill() -> None:
            whole = self._dict(state)
            self._to_finish.append(lambda: modules.set_optimizer_state(made, whole))

        self._to_fill.append(fill)
        return made

    # Tensors

    def _tensor(
        self, number: int, kind: str, requires_grad: bool, attributes: Sequence[Any]
    ) -> torch.Tensor:
        tensor = make_tensor(self._rows[number], self._stored)
        made = objects.finish_tensor(tensor, kind, requires_grad)
        if attributes:
            self._to_fill.append(lambda: vars(made).update(self._dict(attributes)))
        return made

    def _array(self, number: int, scalar: bool) -> Any:
        array = make_tensor(self._rows[number], self._stored).numpy()
        return array[()] if scalar else array

    def _input(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=objects.torch_constant(dtype), device="cpu")

    def _torch(self, name: str) -> Any:
        return objects.torch_constant(name, (torch.dtype, torch.layout, torch.memory_format))


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "list": Reader._list,
    "tuple": lambda reader, items: tuple(reader._all(items)),
    "size": lambda reader, items: torch.Size(reader._all(items)),
    "set": Reader._set,
    "frozenset": lambda reader, items: frozenset(reader._all(items)),
    "deque": Reader._deque,
    "dict": Reader._mapping,
    "slice": lambda reader, *items: slice(*reader._all(items)),
    "bytes": lambda reader, text: bytes.fromhex(text),
    "bytearray": lambda reader, text: bytearray.fromhex(text),
    "complex": lambda reader, a, b: complex(float.fromhex(a), float.fromhex(b)),
    "range": lambda reader, *numbers: range(*numbers),
    "ellipsis": lambda reader: ...,
    "path": lambda reader, text: Path(text),
    "namespace": Reader._namespace,
    "device": lambda reader, text: torch.device(text),
    "torch": Reader._torch,
    "class": lambda reader, path: reader._paths.find_class(path),
    "function": lambda reader, path: reader._paths.find_function(path),
    "method": Reader._method,
    "partial": Reader._partial,
    "enum": Reader._enum,
    "named tuple": Reader._named_tuple,
    "object": Reader._object,
    "module": Reader._module,
    "optimizer": Reader._optimizer,
    "tensor": Reader._tensor,
    "array": Reader._array,
    "input": Reader._input,
}
