"""Containers that still hold the very objects they held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pantile.runtime.held_objects import still_holds

Containers = tuple[dict[Any, Any], list[Any]]


def made() -> Containers:
    return {"a": torch.ones(1), 'quote"\n': None, 3: "x", (1, 2): 1.5}, [torch.ones(2), 7.25]


def test_untouched_containers_hold_what_they_held() -> None:
    table, values = made()
    same = still_holds([table, values])

    assert same() and same()
    table["a"] = table["a"]
    assert same()


EDITS: dict[str, Callable[[dict[Any, Any], list[Any]], object]] = {
    "an equal tensor": lambda table, _: table.update(a=torch.ones(1)),
    "a key that is no name": lambda table, _: table.update({(1, 2): 2.5}),
    "another value": lambda table, _: table.update({3: "y"}),
    "one more": lambda table, _: table.update(b=1),
    "one less": lambda table, _: table.pop(3),
    "another key": lambda table, _: table.update(b=table.pop("a")),
    "nothing left": lambda table, _: table.clear(),
    "an item of a list": lambda _, values: values.__setitem__(0, torch.ones(2)),
    "a longer list": lambda _, values: values.append(0),
    "a shorter list": lambda _, values: values.pop(),
    "another order": lambda _, values: values.reverse(),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_is_noticed(edit: Callable[[dict[Any, Any], list[Any]], object]) -> None:
    table, values = made()
    same = still_holds([table, values])
    edit(table, values)

    assert not same()


def test_containers_of_the_same_keys_are_told_apart() -> None:
    first, second = {"a": object()}, {"a": object()}
    of_first, of_second = still_holds([first]), still_holds([second])
    second["a"] = first["a"]

    assert of_first() and not of_second()


def test_no_containers_hold_what_they_held() -> None:
    assert still_holds([])() and still_holds([{}, []])()
