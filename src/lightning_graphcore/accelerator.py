"""What `from lightning_graphcore.accelerator import IPUAccelerator` finds."""

from pantile.lightning import IPUAccelerator

__all__ = ["IPUAccelerator"]
