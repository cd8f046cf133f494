"""Let torch's loader workers write their batches into rings of their own.

    torch's worker k ── the batch ─────────► ring k ─────────────► parent
              └── a token: where it lies ──► loader's worker ── ITEM ──┘

Without it a batch is moved twice more on its way through the loader's worker, and torch puts it
into new shared memory every time: with one worker and small images that halves the throughput.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import default_collate, get_worker_info

from pantile.data.draft import Draft, collate_into
from pantile.data.packing import Packer
from pantile.data.ring import Ring, State
from pantile.data.shared import SharedFile
from pantile.errors import DataError


@dataclass(frozen=True)
class Place:
    """Where a batch lies: which ring, which row, how many bytes of it."""

    ring: int
    row: int
    size: int

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arrival, (self.ring, self.row, self.size))


class Arrival:
    """A place as the loader's worker receives it. If torch drops it unseen, the row is free."""

    rings: tuple[Ring, ...] = ()  # of this process; set once, by the loader's worker

    def __init__(self, ring: int, row: int, size: int) -> None:
        self.place = Place(ring, row, size)
        self._is_mine = True

    def hand_over(self) -> Place:
        """The parent's from now on."""
        self._is_mine = False
        self.rings[self.place.ring].mark(self.place.row, State.HANDED)
        return self.place

    def __del__(self) -> None:
        if self._is_mine and self.rings:
            self.rings[self.place.ring].mark(self.place.row, State.FREE)


class IntoRing:
    """A `collate_fn` for torch's workers: collate, write into the worker's ring, tell the place.

    Ring 0 is that of the loader's worker; torch's worker k has ring k + 1.
    """

    def __init__(
        self, collate: Callable[[Any], Any], files: tuple[SharedFile, ...], *, flat_only: bool
    ) -> None:
        self._collate = collate
        self._files = files
        self._ring: Ring | None = None
        self._packer = Packer(flat_only=flat_only)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ring": None}

    def __call__(self, samples: Any) -> Place:
        worker = get_worker_info()
        if worker is None:
            raise DataError("a ring of torch's workers can be written only by one of them")
        number = worker.id + 1
        if self._ring is None:
            self._ring = Ring(self._files[number])
            self._ring.recover()
        draft = self._ring.draft() if self._collate is default_collate else None
        packed = self._packer.pack(self._collated(samples, draft), draft)
        return Place(number, self._ring.write(packed), packed.size)

    def _collated(self, samples: Any, draft: Draft | None) -> Any:
        if self._collate is not default_collate:
            return self._collate(samples)
        # In a worker, torch's function puts every batch into new shared memory. It is not needed.
        hidden, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return collate_into(draft, samples)
        finally:
            torch_worker._worker_info = hidden


class IntoDraft:
    """A `collate_fn` for a loader without workers: collate into the ring of this process."""

    def __init__(self, collate: Callable[[Any], Any], ring: Ring) -> None:
        self._collate = collate
        self._ring = ring

    def __call__(self, samples: Any) -> Any:
        if self._collate is not default_collate:
            return self._collate(samples)
        return collate_into(self._ring.draft(), samples)
