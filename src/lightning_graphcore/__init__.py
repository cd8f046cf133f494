"""What `from lightning_graphcore import IPUStrategy` finds where that package is not installed.

Where it is, its own code is loaded instead.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

_NAMES = ("IPUAccelerator", "IPUPrecision", "IPUStrategy")
__all__ = ["IPUAccelerator", "IPUPrecision", "IPUStrategy"]


def _installed() -> Path | None:
    """The real package, if there is one beside this."""
    try:
        files = metadata.files("lightning-graphcore") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.parts[-2:] == ("lightning_graphcore", "__init__.py"):
            found = Path(str(file.locate()))
            if found.exists() and not found.samefile(__file__):
                return found
    return None


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        import pantile.lightning

        return getattr(pantile.lightning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_real = _installed()
if _real is not None:
    __file__, __path__ = str(_real), [str(_real.parent)]
    exec(compile(_real.read_text(encoding="utf-8"), __file__, "exec"))
