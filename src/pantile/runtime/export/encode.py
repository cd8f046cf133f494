"""Python values as plain data: a table of records that refer to each other by number.

    {"act": F.relu, "sizes": (3, 4)}

    0  ["dict", [["act", {"r": 1}], ["sizes", {"r": 2}]], "dict", null]
    1  ["function", "torch.nn.functional:relu"]
    2  ["tuple", [3, 4]]

None, booleans, integers and strings stand for themselves, `{"f": …}` is a float in hexadecimal, and
`{"r": n}` is record n. An object that is used twice has one record, so what was shared is shared
again, and cycles are possible. Tensors are numbered in a table of their own.

What has no meaning outside this process (a lambda, an open file) is an error that names its place.
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import PosixPath
from typing import Any

import numpy as np
import torch
from torch import nn

from pantile.errors import StoreError
from pantile.runtime.export import modules, objects
from pantile.runtime.export.paths import Paths, home_of, is_enum, is_function, is_partial
from pantile.runtime.export.tensors import TensorTable
from pantile.runtime.instrument_link import original_class

Record = list[Any]

WITHOUT_MODEL = "save with export_model=False and call loadExecutable() on a newly wrapped model"

_DICTS = (dict, OrderedDict, defaultdict, Counter)
_GROUPS = {
    list: "list",
    tuple: "tuple",
    torch.Size: "size",
    set: "set",
    frozenset: "frozenset",
}
_SIMPLE: Mapping[type, Callable[[Any], Record]] = {
    bytes: lambda v: ["bytes", v.hex()],
    bytearray: lambda v: ["bytearray", v.hex()],
    complex: lambda v: ["complex", v.real.hex(), v.imag.hex()],
    range: lambda v: ["range", v.start, v.stop, v.step],
    type(Ellipsis): lambda v: ["ellipsis"],
    PosixPath: lambda v: ["path", str(v)],
    torch.device: lambda v: ["device", str(v)],
    torch.dtype: lambda v: ["torch", str(v)],
    torch.layout: lambda v: ["torch", str(v)],
    torch.memory_format: lambda v: ["torch", str(v)],
}
_NUMPY = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)}
)
_TABLES = ("._modules", "._parameters", "._buffers")


class Writer:
    """Collects the records of one file."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.tensors = TensorTable()
        self._numbers: dict[int, int] = {}
        # Numbers are by identity, so nothing that has one may be freed.
        self._kept: list[object] = []
        self._waiting: deque[tuple[int, object, str]] = deque()
        self._named: list[tuple[object, str, str, str]] = []
        self._way_out = WITHOUT_MODEL
        self._module_classes: set[type] = set()
        self._inputs: set[int] = set()

    def as_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """From now on this tensor stands for an argument: only its shape and dtype are kept."""
        self._inputs.add(id(tensor))
        self._kept.append(tensor)
        return tensor

    def value(self, value: object, where: str, *, way_out: str = WITHOUT_MODEL) -> Any:
        """The value as data, with all it refers to.

        `where` is its name in errors, `way_out` what to do about what cannot be written.
        """
        self._way_out = way_out
        data = self._encode(value, where)
        while self._waiting:
            number, waiting, place = self._waiting.popleft()
            self.records[number] = self._record(waiting, place)
        return data

    def check(self, *trusted: type) -> None:
        """Every class and function that was named must be one that loading will accept."""
        paths = Paths([*self._module_classes, *trusted])
        for named, path, where, way_out in self._named:
            if not paths.allows(named):
                raise StoreError(
                    f"{where} needs {path}, from a package that no module of the model belongs to: "
                    "a file may not name it",
                    fix=f"define it in the model's own package, or {way_out}",
                )

    def _encode(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"f": value.hex()}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.records)
            self._kept.append(value)
            self.records.append([])
            self._waiting.append((number, value, where))
        return {"r": number}

    def _record(self, value: Any, where: str) -> Record:
        kind = original_class(type(value))
        if kind in _SIMPLE:
            return _SIMPLE[kind](value)
        if kind in _GROUPS:
            return [_GROUPS[kind], self._items(value, where)]
        if kind in _DICTS:
            factory = self._encode(getattr(value, "default_factory", None), f"{where}'s factory")
            return ["dict", self._pairs(value, where), kind.__name__, factory]
        if kind is slice:
            return ["slice", *self._items((value.start, value.stop, value.step), where)]
        if kind is deque:
            return ["deque", self._items(value, where), value.maxlen]
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, nn.Module):
            return self._module(value, where)
        return self._named_value(value, kind, where)

    def _named_value(self, value: Any, kind: type, where: str) -> Record:
        """Values that are, or have, a class or function with an import path."""
        if isinstance(value, type):
            return ["class", self._path(original_class(value), where)]
        if is_function(value):
            return ["function", self._path(value, where)]
        if isinstance(value, types.MethodType):
            return self._method(value, where)
        if is_partial(value):
            function = self._encode(value.func, where)
            return [
                "partial",
                function,
                self._items(value.args, where),
                self._pairs(value.keywords, where),
            ]
        if is_enum(value):
            return ["enum", self._path(kind, where), self._encode(value.value, where)]
        if isinstance(value, torch.optim.Optimizer):
            state = modules.optimizer_state(value)
            return ["optimizer", self._path(kind, where), self._attributes(state, where)]
        return self._object(value, kind, where)

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self._encode(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], where: str) -> list[list[Any]]:
        table = next((t for t in _TABLES if where.endswith(t)), None)
        if table is not None:
            return self._attributes(values, where.removesuffix(table))
        return [
            [self._encode(key, f"a key of {where}"), self._encode(item, _place(where, key))]
            for key, item in values.items()
        ]

    def _attributes(self, values: Mapping[Any, Any], where: str) -> list[list[Any]]:
        return [
            [self._encode(name, where), self._encode(item, f"{where}.{name}")]
            for name, item in values.items()
        ]

    def _path(self, named: Any, where: str) -> str:
        path = home_of(named)
        if path is None:
            name = getattr(named, "__qualname__", type(named).__name__)
            what = "class" if isinstance(named, type) else "function"
            raise StoreError(
                f"{where} needs the {what} {name!r}, which cannot be imported by its name",
                fix=f"define it at the top level of a module, or {self._way_out}",
            )
        self._named.append((named, path, where, self._way_out))
        return path

    # Kinds with more to say

    def _tensor(self, tensor: torch.Tensor, where: str) -> Record:
        if id(tensor) in self._inputs:
            return ["input", list(tensor.shape), str(tensor.dtype)]
        kind = objects.tensor_kind(tensor, where, self._way_out)
        attributes = self._attributes(objects.tensor_attributes(tensor), where)
        return ["tensor", self.tensors.add(tensor, where), kind, tensor.requires_grad, attributes]

    def _module(self, module: nn.Module, where: str) -> Record:
        cls = modules.plain_class(module)
        self._module_classes.add(cls)
        state = self._attributes(modules.module_state(module, where), where)
        return ["module", self._path(cls, where), state, cls is not original_class(type(module))]

    def _method(self, method: types.MethodType, where: str) -> Record:
        name = method.__func__.__name__
        owner = method.__self__
        if getattr(owner, name, None) != method:
            raise StoreError(
                f"{where} is the method {method.__qualname__}, which its object does not have "
                "under that name",
                fix=f"keep the object and call its method in forward, or {self._way_out}",
            )
        return ["method", self._encode(owner, f"{where}.__self__"), name]

    def _object(self, value: Any, kind: type, where: str) -> Record:
        if isinstance(value, np.ndarray | np.generic) and value.dtype.name in _NUMPY:
            tensor = torch.from_numpy(np.array(value))
            return ["array", self.tensors.add(tensor, where), isinstance(value, np.generic)]
        if kind is types.SimpleNamespace:
            return ["namespace", self._attributes(vars(value), where)]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["named tuple", self._path(kind, where), self._items(value, where)]
        objects.check_plain(value, where, self._way_out)
        state = self._attributes(objects.object_state(value), where)
        items = None
        if isinstance(value, dict):
            items = self._pairs(dict(dict.items(value)), where)
        elif isinstance(value, list):
            items = self._items(list.__iter__(value), where)
        return ["object", self._path(kind, where), state, items]


def _place(where: str, key: object) -> str:
    return f"{where}[{key!r}]" if isinstance(key, bool | int | str) else f"{where}[…]"
