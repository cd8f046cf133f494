"""What `from lightning_graphcore.accelerator import IPUAccelerator` finds."""

from __future__ import annotations

from typing import Any

_NAME = "IPUAccelerator"


def __getattr__(name: str) -> Any:
    if name == _NAME:
        import pantile.lightning

        return getattr(pantile.lightning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
