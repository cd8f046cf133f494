"""When Inductor has better code for the whole program."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from pantile.program.program import Program


def check_worth(program: Program, left: Collection[fx.Node]) -> None:
    """Refuse a program with too many calls."""
