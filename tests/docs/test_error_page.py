"""The error page and `pantile/errors.py` tell the same story."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pantile import errors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


def error_classes() -> set[str]:
    return {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.Error) and not name.startswith("_")
    }


def test_the_page_shows_the_tree_of_the_module() -> None:
    shown = re.search(r"```text\n(.*?)```", PAGE, re.S)
    assert shown is not None
    docstring = inspect.cleandoc(errors.__doc__ or "")
    tree = [line.removeprefix("    ") for line in docstring.splitlines() if line.startswith("    ")]

    assert shown[1].splitlines() == tree


def test_every_class_has_a_section() -> None:
    sections = set(re.findall(r"^#{2,4} (\w+)$", PAGE, re.M))

    assert sections == error_classes()


def test_sections_are_nested_like_the_classes() -> None:
    depth = {name: len(marks) for marks, name in re.findall(r"^(#{2,4}) (\w+)$", PAGE, re.M)}

    for name in error_classes() - {"Error"}:
        parent = getattr(errors, name).__mro__[1].__name__
        if parent != "Error":
            assert depth[name] == depth[parent] + 1, name
