"""With how many threads a program is to run."""

from __future__ import annotations

from pantile.lowering.tune import is_doubtful


def test_threads_that_do_not_help_a_long_program_are_timed_again():
    assert is_doubtful({1: 2234e-6, 2: 5879e-6}, 2)
    assert is_doubtful({1: 2234e-6, 2: 2200e-6}, 2)


def test_threads_that_help_are_believed():
    assert not is_doubtful({1: 2249e-6, 2: 1265e-6}, 2)


def test_nobody_expects_threads_to_help_a_short_program():
    assert not is_doubtful({1: 21e-6, 2: 104e-6}, 2)


def test_one_thread_is_not_compared_with_itself():
    assert not is_doubtful({1: 5e-3}, 1)
