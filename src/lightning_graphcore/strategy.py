"""What `from lightning_graphcore.strategy import IPUStrategy` finds."""

from pantile.lightning import IPUStrategy

__all__ = ["IPUStrategy"]
