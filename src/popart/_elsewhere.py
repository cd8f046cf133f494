"""Finds another package of the same name further along the path."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


def find(name: str, own: str) -> ModuleSpec | None:
    """Another package of that name than the one whose `__init__` is the file `own`."""
    folder = Path(own).resolve().parent.parent
    others = [path for path in sys.path if Path(path or ".").resolve() != folder]
    found = PathFinder.find_spec(name, others)
    return found if found is not None and found.loader is not None else None


def load(found: ModuleSpec) -> ModuleType:
    """Import it in the place of this one."""
    for name in [name for name in sys.modules if name.startswith(f"{found.name}.")]:
        del sys.modules[name]
    module = module_from_spec(found)
    assert found.loader is not None
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
