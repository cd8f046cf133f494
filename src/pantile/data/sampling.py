"""Which rows of a dataset this process reads.

With P processes every one gets a contiguous block of whole combined batches. What does not fill
one is left out at the end in even epochs and at the start in odd ones, so that two epochs in a
row show every row (here 11 rows, 2 processes, combined batches of 2):

    epoch 0   [0 1 2 3][4 5 6 7] 8 9 10
    epoch 1   0 1 2 [3 4 5 6][7 8 9 10]

Shuffling permutes all rows first, with the same seed in every process, and then cuts the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class ProcessShare(Sampler[int]):
    """The indices of one process out of several, another set of them in every epoch."""

    def __init__(
        self,
        rows: int,
        *,
        process: int,
        processes: int,
        batch: int,
        drop_last: bool,
        seed: int | None,
    ) -> None:
        self._rows = rows
        self._process = process
        self._processes = processes
        self._batch = batch
        self._drop_last = drop_last
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._epoch = 0

    def __len__(self) -> int:
        start, stop = self._block(0)
        return stop - start

    def __iter__(self) -> Iterator[int]:
        start, stop = self._block(self._epoch)
        self._epoch += 1
        if self._generator is None:
            return iter(range(start, stop))
        # Every process draws the whole permutation, else their blocks would overlap.
        order = torch.randperm(self._rows, generator=self._generator)
        return iter(order[start:stop].tolist())

    def _block(self, epoch: int) -> tuple[int, int]:
        """First and last-but-one position of this process's block."""
        if not self._drop_last:
            bounds = [self._rows * p // self._processes for p in (self._process, self._process + 1)]
            return bounds[0], bounds[1]
        share = self._batch * (self._rows // (self._batch * self._processes))
        left_over = self._rows - share * self._processes
        start = share * self._process + (left_over if epoch % 2 else 0)
        return start, start + share
