"""What `from lightning_graphcore.strategy import IPUStrategy` finds."""

from __future__ import annotations

from typing import Any

_NAME = "IPUStrategy"


def __getattr__(name: str) -> Any:
    if name == _NAME:
        import pantile.lightning

        return getattr(pantile.lightning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
