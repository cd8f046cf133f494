"""Classes and functions by their import path, and which of them a file may name.

    torch.nn.modules.linear:Linear      a class, written as module:name
    my_model:swish                      a function

A file holds names, never code; what a name leads to is still a choice that must not be left to the
file. A path is made of plain identifiers and goes through classes only (`torch:os.system` leads
through a module). What it finds must be one of these:

    module classes      any subclass of nn.Module that is not in the standard library
    everything else     from a package that a module class of the file belongs to, from the parts
                        of torch that compute, from Pantile, or in a short list of standard names
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

from torch import nn

from pantile.errors import StoreError
from pantile.program.structure import _parsers

_FUNCTION_KINDS = (FunctionType, BuiltinFunctionType, MethodDescriptorType)
_PUBLIC_HOMES = (
    "torch.nn.functional:",
    "torch:",
    "torch.special:",
    "torch.fft:",
    "torch.linalg:",
    "torch:Tensor.",
    "operator:",
    "math:",
)
"""Where builtins are looked for: they often do not know where they live."""

_TORCH_PARTS = (
    "torch._C._nn",
    "torch._C._special",
    "torch._C._fft",
    "torch._C._linalg",
    "torch._tensor",
    "torch.distributions",
    "torch.fft",
    "torch.functional",
    "torch.linalg",
    "torch.nn",
    "torch.optim",
    "torch.special",
)
_OWN = ("pantile", "poptorch", "popdist")
_STANDARD = frozenset(
    {
        "argparse:Namespace",
        "collections:Counter",
        "collections:OrderedDict",
        "collections:defaultdict",
        "collections:deque",
        "types:SimpleNamespace",
        *(f"builtins:{name}" for name in ("bool", "bytes", "complex", "dict", "float", "int")),
        *(f"builtins:{name}" for name in ("frozenset", "list", "set", "slice", "str", "tuple")),
    }
)
_STANDARD_MODULES = frozenset({"functools", "math", "operator"})


class Paths:
    """What the names of one file may lead to."""

    def __init__(self, module_classes: Iterable[type] = ()) -> None:
        self._packages = {_package(cls.__module__) for cls in module_classes} - {"torch"}

    def trust(self, cls: type) -> None:
        """Also take names from the package of this class."""
        if _package(cls.__module__) != "torch":
            self._packages.add(_package(cls.__module__))

    def allows(self, found: object) -> bool:
        """May a file name this class or function?"""
        if isinstance(found, type) and issubclass(found, nn.Module):
            return not _is_standard(found.__module__)
        if isinstance(found, type) and any(issubclass(found, kind) for kind in _parsers):
            return True  # the user registered an ICustomArgParser for it
        home = home_of(found)
        if isinstance(found, BuiltinFunctionType | MethodDescriptorType):
            return home is not None and home.startswith(_PUBLIC_HOMES)
        module = str(getattr(found, "__module__", None))
        return (
            _package(module) in self._packages
            or _package(module) in _OWN
            or any(module == part or module.startswith(f"{part}.") for part in _TORCH_PARTS)
            or module in _STANDARD_MODULES
            or home in _STANDARD
        )

    def find(self, path: object) -> Any:
        """The class or function of that path, imported if need be."""
        module, names = split(path)
        if not self._may_import(module):
            raise refused(path, "names from there are not taken from files")
        found: Any = _imported(module, path)
        for depth, name in enumerate(names):
            if depth and isinstance(found, ModuleType):
                raise refused(path, f"{found.__name__} is a module, not a class")
            try:
                found = getattr(found, name)
            except AttributeError:
                raise missing(path, f"{module} has no {'.'.join(names)}") from None
        if not isinstance(found, (type, *_FUNCTION_KINDS)):
            raise refused(path, f"it is a {type(found).__name__}, not a class or function")
        if not self.allows(found):
            raise refused(path, "names from there are not taken from files")
        return found

    def _may_import(self, module: str) -> bool:
        return (
            not _is_standard(module)
            or module in _STANDARD_MODULES
            or any(known.startswith(f"{module}:") for known in _STANDARD)
        )

    def find_class(self, path: object, base: type = object) -> type[Any]:
        """The class of that path, which must be a subclass of `base`."""
        found = self.find(path)
        if not isinstance(found, type) or not issubclass(found, base):
            raise refused(path, f"it is not a subclass of {base.__name__}")
        return found

    def find_function(self, path: object) -> Callable[..., Any]:
        """The function of that path."""
        found = self.find(path)
        if isinstance(found, type):
            raise refused(path, "it is a class, not a function")
        return found  # type: ignore[no-any-return]


def home_of(thing: object) -> str | None:
    """The path under which a class or function can be imported again, or None."""
    name = str(getattr(thing, "__qualname__", ""))
    if isinstance(thing, BuiltinFunctionType | MethodDescriptorType):
        short = re.sub("^(special|fft|linalg)_", "", name.rpartition(".")[2])
        candidates = [f"{home}{short}" for home in _PUBLIC_HOMES]
    else:
        module = str(getattr(thing, "__module__", ""))
        candidates = [f"{module}:{name}", *_names_in(module, thing)]
    return next((path for path in candidates if _leads_to(path, thing)), None)


def _names_in(module: str, thing: object) -> list[str]:
    """Names of `thing` in its module, for one whose own name is that of a local function."""
    space = vars(sys.modules[module]) if module in sys.modules else {}
    return [f"{module}:{name}" for name, value in list(space.items()) if value is thing]


def _leads_to(path: str, thing: object) -> bool:
    try:
        module, names = split(path)
    except StoreError:
        return False
    found: object = sys.modules.get(module)
    for name in names:
        found = getattr(found, name, None)
    return found is thing


def split(path: object) -> tuple[str, list[str]]:
    """Module and names of a path of plain identifiers."""
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    parts, names = module.split("."), name.split(".")
    private = [part for part in names if part.startswith("__")]
    if not colon or private or not all(part.isidentifier() for part in (*parts, *names)):
        raise refused(path, "it is not module:name, made of plain identifiers")
    return module, names


def is_function(value: object) -> bool:
    """Is it something that `find_function` could return?"""
    return isinstance(value, _FUNCTION_KINDS)


def is_partial(value: object) -> bool:
    """Is it exactly a `functools.partial`, with no attributes of its own?"""
    return type(value) is functools.partial and not vars(value)


def is_enum(value: object) -> bool:
    """Is it a member of an enumeration?"""
    return isinstance(value, Enum)


def _imported(module: str, path: object) -> ModuleType:
    known = sys.modules.get(module)
    if known is not None:
        return known
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(path, str(error)) from error


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_standard(module: str) -> bool:
    return _package(module) in sys.stdlib_module_names


def refused(path: object, why: str) -> StoreError:
    """The error for a path that must not be followed."""
    return StoreError(
        f"the file names {path!r}, which is refused: {why}",
        fix="load only files that you or somebody you trust exported",
    )


def missing(path: object, why: str) -> StoreError:
    """The error for a path that leads nowhere in this process."""
    where = str(path).partition(":")[0]
    fix = (
        "load the file from the script that defines the class, or move the class to a module"
        if where == "__main__"
        else f"make {where!r} importable, with the class it had when the file was exported"
    )
    return StoreError(f"the file needs {path!r}, which is not here: {why}", fix=fix)
