"""Kernels that differ in nothing but numbers are one function, which is given the numbers.

    for (int i = 0; i < ‹64›; i++) …
                                         ->    for (int i = 0; i < n0; i++) …    of (64), of (128)
    for (int i = 0; i < ‹128›; i++) …

Only numbers that were opened may differ: those the compiler makes no better code of, as the sizes
of outer loops and their strides. An opened number that all kernels agree on stays a number.

What a template must know of a convolution is a table of many numbers, opened as one:

    conv_by<2, true>(‹ConvPlan|conv_plan<…>›, …)
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


def opened_table(cpp: str, constant: str) -> str:
    """The same for a constant of a struct."""
    return f"‹{cpp}|{constant}›"


def skeleton(text: str) -> str:
    """The text without its opened numbers: equal for kernels that can be one function."""
    return _OPENED.sub(_NEITHER, text)


@dataclass(frozen=True)
class Table:
    """A constant of a struct that several files know by its name."""

    name: str
    cpp: str
    constant: str

    @property
    def declared(self) -> str:
        """For the file that calls kernels, which need not know the struct."""
        return f"struct {self.cpp}; extern const {self.cpp} {self.name};"

    @property
    def defined(self) -> str:
        """For the file of the kernel."""
        hidden = '__attribute__((visibility("hidden")))'
        return f"extern {hidden} const {self.cpp} {self.name} = {self.constant};"


@dataclass(frozen=True)
class Shared:
    """One function for some kernels with the same skeleton."""

    parameters: str
    text: str
    arguments: tuple[str, ...]
    """Of each kernel, to follow its other arguments."""
    tables: tuple[Table, ...]


def shared(texts: Sequence[str], name: str) -> Shared:
    """The function of that name for kernels with the same skeleton."""
    rows = [_OPENED.findall(text) for text in texts]
    names: dict[tuple[str, ...], str] = {}
    pieces = skeleton(texts[0]).split(_NEITHER)
    text = pieces[0]
    for column, piece in zip(zip(*rows, strict=True), pieces[1:], strict=True):
        if len(set(column)) > 1:
            text += names.setdefault(column, f"n{len(names)}") + piece
        else:
            text += column[0].rpartition("|")[2] + piece
    parameters = "".join(f", {_type(column)} {name}" for column, name in names.items())
    tables: dict[str, Table] = {}
    for number in (number for column in names for number in column if "|" in number):
        cpp, constant = number.split("|")
        tables.setdefault(number, Table(f"{name}_table{len(tables)}", cpp, constant))
    lines = zip(*names, strict=True) if names else [()] * len(texts)
    arguments = [
        "".join(f", {tables[n].name if n in tables else n}" for n in line) for line in lines
    ]
    return Shared(parameters, text, tuple(arguments), tuple(tables.values()))


def _type(numbers: Sequence[str]) -> str:
    if "|" in numbers[0]:
        return f"const {numbers[0].partition('|')[0]}&"
    if all(number.endswith("f") for number in numbers):
        return "float"
    return "double" if any("." in number or "e" in number for number in numbers) else "int"
