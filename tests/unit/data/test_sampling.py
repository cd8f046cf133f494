"""Dividing rows between processes."""

from __future__ import annotations

import pytest

from pantile.data.sampling import ProcessShare


def shares(rows, processes, *, batch=1, drop_last=True, seed=None):
    return [
        ProcessShare(
            rows,
            process=p,
            processes=processes,
            batch=batch,
            drop_last=drop_last,
            seed=seed,
        )
        for p in range(processes)
    ]


def test_every_process_gets_a_contiguous_block_of_whole_batches():
    first, second = shares(11, 2, batch=2)

    assert (list(first), list(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])


def test_the_rows_left_out_at_the_end_are_read_in_the_next_epoch():
    first, second = shares(11, 2, batch=2)
    even = {*first, *second}

    odd = {*first, *second}

    assert odd == set(range(3, 11))
    assert even | odd == set(range(11))


@pytest.mark.parametrize(("rows", "processes", "batch"), [(101, 4, 4), (7, 4, 1), (64, 3, 5)])
def test_a_block_has_as_many_rows_as_the_formula_says(rows, processes, batch):
    expected = batch * (rows // (batch * processes))

    for share in shares(rows, processes, batch=batch):
        assert len(share) == len(list(share)) == expected


@pytest.mark.parametrize(("rows", "processes"), [(10, 3), (11, 3), (2, 3), (100, 7)])
def test_without_drop_last_all_rows_are_read_and_sizes_differ_by_at_most_one(rows, processes):
    blocks = [list(share) for share in shares(rows, processes, batch=4, drop_last=False)]

    assert [row for block in blocks for row in block] == list(range(rows))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_shuffled_blocks_do_not_overlap_because_all_processes_draw_one_permutation():
    blocks = [list(share) for share in shares(12, 3, batch=2, seed=7)]

    together = [row for block in blocks for row in block]
    assert sorted(together) == list(range(12))
    assert together != list(range(12))


def test_a_seed_gives_the_same_order_again_but_another_one_in_every_epoch():
    one, again = shares(50, 1, seed=3)[0], shares(50, 1, seed=3)[0]
    first_epoch = list(one)

    assert first_epoch == list(again)
    assert first_epoch != list(one)
