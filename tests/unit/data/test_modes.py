"""Every mode, kind of dataset, batch size, number of workers and treatment of the last batch."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.data.toy_datasets import Counting, CountingStream

from pantile.enums import DataLoaderMode, SharingStrategy

ROWS = 23
MODES = list(DataLoaderMode)
CASES = list(
    itertools.product((Counting, CountingStream), (1, 2, 3), (1, 2), (0, 1, 3), (True, False))
)


def check(loader, kind, size, iterations, workers, drop_last):
    """All modes yield the rows the arithmetic says, and map-style ones the same batches."""
    combined = size * iterations
    epochs_of = {}
    for mode in MODES:
        extra = {"async_options": {"sharing_strategy": SharingStrategy.Fork}} if mode else {}
        made = loader(
            kind(ROWS),
            D=iterations,
            batch_size=size,
            num_workers=workers,
            drop_last=drop_last,
            mode=mode,
            **extra,
        )
        epochs = [[batch.tolist() for batch in made] for _ in range(2)]
        epochs_of[mode] = epochs
        loses_in_workers = kind is CountingStream and workers > 1
        if loses_in_workers and mode is not DataLoaderMode.AsyncRebatched:
            continue
        expected = ROWS // combined * combined if drop_last else ROWS
        for epoch in epochs:
            assert len({row for batch in epoch for row in batch}) == expected, mode
            whole = epoch if drop_last else epoch[:-1]
            assert {len(batch) for batch in whole} <= {combined}, mode
            assert len(made) == len(epoch), mode
        made.terminate()
    if kind is Counting:
        assert epochs_of[MODES[1]] == epochs_of[MODES[2]] == epochs_of[MODES[0]]


@pytest.mark.parametrize("case", [CASES[9], CASES[-3]], ids=str)
def test_every_mode_yields_the_rows_it_should(case, loader):
    check(loader, *case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_mode_yields_the_rows_it_should_in_all_cases(case, loader):
    check(loader, *case)
