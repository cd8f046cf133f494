"""What `from lightning_graphcore.precision import IPUPrecision` finds."""

from pantile.lightning import IPUPrecision

__all__ = ["IPUPrecision"]
