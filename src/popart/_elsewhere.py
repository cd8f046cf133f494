"""Finds another package of the same name further along the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


def find(name: str, own: str) -> ModuleSpec | None:
    """Another package of that name than the one whose `__init__` is the file `own`.

    Copies of this shim (a checkout beside an installed package) are passed over: each would
    make way for the other for ever.
    """
    folder = Path(own).resolve().parent.parent
    others = [path for path in sys.path if Path(path or ".").resolve() != folder]
    return next((spec for spec in _specs(name, others) if not _is_a_copy(spec)), None)


def _specs(name: str, paths: list[str]) -> Iterator[ModuleSpec]:
    for path in paths:
        found = PathFinder.find_spec(name, [path])
        if found is not None and found.loader is not None:
            yield found


def _is_a_copy(found: ModuleSpec) -> bool:
    folders = found.submodule_search_locations or ()
    return any((Path(folder) / Path(__file__).name).is_file() for folder in folders)


def load(found: ModuleSpec) -> ModuleType:
    """Import it in the place of this one."""
    for name in [name for name in sys.modules if name.startswith(f"{found.name}.")]:
        del sys.modules[name]
    module = module_from_spec(found)
    assert found.loader is not None
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
