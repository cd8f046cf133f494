"""Kernels that differ in nothing but numbers are one function, which is given the numbers.

    for (int i = 0; i < ‹64›; i++) …
                                         ->    for (int i = 0; i < n0; i++) …    of (64), of (128)
    for (int i = 0; i < ‹128›; i++) …

Only numbers that were opened may differ: those the compiler makes no better code of, as the sizes
of outer loops and their strides. An opened number that all kernels agree on stays a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_OPENED = re.compile(r"‹([^›]*)›")
_NEITHER = "‹›"


def opened(number: object) -> str:
    """A number in the text of a kernel that may be another one in a kernel like it."""
    return f"‹{number}›"


def skeleton(text: str) -> str:
    """The text without its opened numbers: equal for kernels that can be one function."""
    return _OPENED.sub(_NEITHER, text)


@dataclass(frozen=True)
class Shared:
    """One function for some kernels with the same skeleton."""

    parameters: str
    text: str
    arguments: tuple[str, ...]
    """Of each kernel, to follow its other arguments."""


def shared(texts: Sequence[str]) -> Shared:
    """The function for kernels with the same skeleton."""
    rows = [_OPENED.findall(text) for text in texts]
    names: dict[tuple[str, ...], str] = {}
    pieces = skeleton(texts[0]).split(_NEITHER)
    text = pieces[0]
    for column, piece in zip(zip(*rows, strict=True), pieces[1:], strict=True):
        differ = len(set(column)) > 1
        text += (names.setdefault(column, f"n{len(names)}") if differ else column[0]) + piece
    parameters = "".join(f", {_type(column)} {name}" for column, name in names.items())
    arguments = zip(*names, strict=True) if names else [()] * len(texts)
    return Shared(parameters, text, tuple("".join(f", {n}" for n in row) for row in arguments))


def _type(numbers: Sequence[str]) -> str:
    if all(number.endswith("f") for number in numbers):
        return "float"
    return "double" if any("." in number or "e" in number for number in numbers) else "int"
