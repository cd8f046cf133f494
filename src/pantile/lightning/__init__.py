"""Lightning on software IPUs: `Trainer(accelerator="ipu", devices=8)`.

    import pantile.lightning                  registers "ipu" (not needed after pip install)
    Trainer(accelerator="ipu", devices=8)

Importing this module registers the accelerator with the copies of Lightning that are or will be
imported; it imports none itself.
"""

from __future__ import annotations

import sys
from typing import Any

from pantile.lightning.accelerator import accelerator_class
from pantile.lightning.fabric import register_fabric
from pantile.lightning.legacy import plugin_class, trainer_class
from pantile.lightning.namespaces import NAMES, Namespace, default_namespace
from pantile.lightning.precision import precision_class
from pantile.lightning.profiler import profiler_class
from pantile.lightning.register import register, unregister
from pantile.lightning.strategy import strategy_class
from pantile_autoload import autoload

__all__ = [
    "IPUAccelerator",
    "IPUPlugin",
    "IPUPrecision",
    "IPUProfiler",
    "IPUStrategy",
    "Namespace",
    "Trainer",
    "register",
    "unregister",
]

_CLASSES = {
    "IPUAccelerator": accelerator_class,
    "IPUPlugin": plugin_class,
    "IPUPrecision": precision_class,
    "IPUProfiler": profiler_class,
    "IPUStrategy": strategy_class,
    "Trainer": trainer_class,
}


def __getattr__(name: str) -> Any:
    """The classes for the copy of Lightning that the script uses."""
    if name in _CLASSES:
        return _CLASSES[name](default_namespace())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_all() -> None:
    autoload()
    for name in NAMES:
        if f"{name}.trainer.connectors.accelerator_connector" in sys.modules:
            register(Namespace(name))
    for name in ("lightning.fabric", "lightning_fabric"):
        if f"{name}.connector" in sys.modules:
            register_fabric(name)


_register_all()
