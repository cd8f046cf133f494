"""Feeding a model: combined batches, in this process or prepared by another one.

dataset ── sampling ── torch's loader ── combine ──┬── DataLoader (Sync)
                                                   └── worker ══ ring ══ accessor (Async)
"""

from __future__ import annotations

from pantile.data.accessor import AsynchronousDataAccessor
from pantile.data.loader import DataLoader

__all__ = ["AsynchronousDataAccessor", "DataLoader"]
