"""Lightning on software IPUs: `Trainer(accelerator="ipu", devices=8)`.

    import pantile.lightning                  registers "ipu" (not needed after pip install)
    Trainer(accelerator="ipu", devices=8)

Importing this module registers the accelerator with the copy of Lightning the script uses.
"""

from __future__ import annotations

from typing import Any

from pantile.lightning.accelerator import accelerator_class
from pantile.lightning.namespaces import Namespace, default_namespace
from pantile.lightning.precision import precision_class
from pantile.lightning.register import register, unregister
from pantile.lightning.strategy import strategy_class

__all__ = [
    "IPUAccelerator",
    "IPUPrecision",
    "IPUStrategy",
    "Namespace",
    "register",
    "unregister",
]

_CLASSES = {
    "IPUAccelerator": accelerator_class,
    "IPUPrecision": precision_class,
    "IPUStrategy": strategy_class,
}


def __getattr__(name: str) -> Any:
    """The classes for the copy of Lightning that the script uses."""
    if name in _CLASSES:
        return _CLASSES[name](default_namespace())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
