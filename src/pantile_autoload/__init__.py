"""Make `Trainer(accelerator="ipu")` work without an import of Pantile.

PyTorch calls `autoload` at the end of `import torch` (entry point `torch.backends`). It only leaves
a finder behind: when Lightning's connector has been imported, "ipu" is registered with it. What
goes wrong is a warning; `import torch` and `import lightning` never fail because of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

_TRAINERS = {
    f"{name}.trainer.connectors.accelerator_connector": name
    for name in ("lightning.pytorch", "pytorch_lightning")
}
_FABRICS = {f"{name}.connector": name for name in ("lightning.fabric", "lightning_fabric")}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the connectors like everybody else, and has "ipu" registered after their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _TRAINERS and fullname not in _FABRICS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            _register(module.__name__)
        except Exception as error:
            warnings.warn(f"accelerator='ipu' is not available: {error}", stacklevel=2)


def _register(connector: str) -> None:
    if connector in _TRAINERS:
        from pantile.lightning.namespaces import Namespace
        from pantile.lightning.register import register

        register(Namespace(_TRAINERS[connector]))
    else:
        from pantile.lightning.fabric import register_fabric

        register_fabric(_FABRICS[connector])


def autoload() -> None:
    """Called by PyTorch."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
