"""Lightning exists twice: as `lightning.pytorch` and as `pytorch_lightning`.

They are two copies with registries and base classes of their own, so our classes are made once
for each. Nothing of Lightning is imported before it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pantile.errors import Error

NAMES = ("lightning.pytorch", "pytorch_lightning")


@dataclass(frozen=True)
class Namespace:
    """One of the two copies."""

    name: str

    def find(self, path: str) -> Any:
        """An object by module and name: `strategies.parallel:ParallelStrategy`."""
        module, _, name = path.partition(":")
        found = import_module(f"{self.name}.{module}" if module else self.name)
        return getattr(found, name) if name else found

    def module_names(self) -> frozenset[str]:
        """The attributes that every LightningModule has, and Lightning changes."""
        made = self.find("core.module:LightningModule")()
        return frozenset(vars(made)) - {"training"} | {"_hparams", "_hparams_initial", "_trainer"}

    @property
    def fabric(self) -> str:
        """The Fabric this copy is built on."""
        return "lightning.fabric" if self.name == NAMES[0] else "lightning_fabric"


class Made:
    """The base of a class that is made once for each namespace; its objects can be pickled."""

    namespace: Namespace
    #: The function that makes the class.
    maker: Callable[[Namespace], Any]

    def __reduce_ex__(self, protocol: Any) -> Any:
        make = getattr(type(self), "maker", None)
        if make is None or type(self) is not make(self.namespace):  # a user's class has a name
            return super().__reduce_ex__(protocol)
        return _blank, (make, self.namespace), self.__getstate__()


def _blank(make: Callable[[Namespace], Any], namespace: Namespace) -> Any:
    kind = make(namespace)
    return kind.__new__(kind)


def made_class(name: str, maker: Any, namespace: Namespace, *bases: Any, **members: Any) -> Any:
    """A class for one namespace."""
    known = {"namespace": namespace, "maker": staticmethod(maker), "__module__": maker.__module__}
    return type(name, bases, {**known, **members})


def default_namespace() -> Namespace:
    """The copy that the script has imported, else the one that is installed."""
    for name in NAMES:
        if name in sys.modules:
            return Namespace(name)
    for name in NAMES:
        if find_spec(name.partition(".")[0]) is not None:
            return Namespace(name)
    raise Error("Lightning is not installed", fix="pip install 'pantile[lightning]'")
