"""When Python looks for garbage, and what else is dropped."""

from __future__ import annotations

import gc
import inspect
import linecache
import weakref
from collections.abc import Iterator

import pytest

from pantile.program import garbage
from pantile.program.garbage import forget_source_lines, free_left_graphs, uncollected


class Ring:
    """Holds itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def search_as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def left() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


def test_what_was_left_is_freed_though_the_search_is_off_for_a_while() -> None:
    with uncollected():
        ring = left()
        free_left_graphs()

        assert ring() is None
        assert not gc.isenabled()


def test_nothing_is_searched_for_a_user_who_has_switched_that_off() -> None:
    gc.disable()
    with uncollected():
        ring = left()
        free_left_graphs()

    assert ring() is not None
    assert not gc.isenabled()


def test_the_search_goes_on_after_the_outermost_of_several() -> None:
    with uncollected():
        with uncollected():
            pass
        within = gc.isenabled()

    assert not within
    assert gc.isenabled()


def test_lines_of_files_are_forgotten_and_read_again() -> None:
    before = inspect.getsource(uncollected)

    forget_source_lines()

    assert garbage.__file__ not in linecache.cache
    assert inspect.getsource(uncollected) == before


def test_lines_that_are_in_no_file_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = (12, None, ["answer = 42\n"], "<cell 1>")
    monkeypatch.setitem(linecache.cache, "<cell 1>", cell)

    forget_source_lines()

    assert linecache.getline("<cell 1>", 1) == "answer = 42\n"
