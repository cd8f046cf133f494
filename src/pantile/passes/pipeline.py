"""The passes, in their order, and the loop that runs them.

    Program ──► pass ──► verify ──► pass ──► verify ──► …

Nothing registers itself by being imported: this tuple is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable

from pantile.errors import ProgramError
from pantile.passes.drop_dead_code import drop_dead_code
from pantile.program.program import Program
from pantile.program.verify import verify

Pass = Callable[[Program], Program]

PASSES: tuple[Pass, ...] = (drop_dead_code,)
"""What every captured Program goes through."""


def run_passes(program: Program, *, passes: tuple[Pass, ...] = PASSES) -> Program:
    """The Program after all `passes`; the error for a broken Program names the pass."""
    _check(program, "before the first pass")
    for change in passes:
        program = change(program)
        _check(program, f"after the pass {_name(change)!r}")
    return program


def _name(change: Pass) -> str:
    return getattr(change, "__name__", type(change).__name__)


def _check(program: Program, when: str) -> None:
    try:
        verify(program)
    except ProgramError as error:
        raise ProgramError(f"{when}: {error.message}", fix=error.fix) from error
