"""The refusals we know of: `refusals.toml`, with a reason for each.

The list is kept honest from both sides: a case that is refused and not listed fails its test, and
so does one that is listed and now runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.differential.harness import Outcome, Verdict


@dataclass(frozen=True)
class Refusal:
    """Which samples of an op, or inputs of a module, are refused, and why."""

    error: str
    cases: frozenset[int]
    reason: str


@cache
def known_refusals(suite: str) -> Mapping[str, Refusal]:
    """The refusals of one suite, by op or module."""
    text = Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text).get(suite, {})
    return {
        name: Refusal(row["error"], _numbers(row["cases"]), row["reason"])
        for name, row in rows.items()
    }


def _numbers(text: str) -> frozenset[int]:
    """`"0, 2-4"` -> {0, 2, 3, 4}."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def is_wrong(verdict: Verdict) -> bool:
    """True if the case gave another number than eager, or an error that is not ours."""
    return verdict.outcome in (Outcome.WRONG, Outcome.CRASHED)


def complaint(suite: str, name: str, index: int, verdict: Verdict) -> str:
    """What is wrong with a verdict, given what is expected; empty if nothing is."""
    known = known_refusals(suite).get(name)
    expected = known is not None and index in known.cases
    if is_wrong(verdict):
        return f"{name}[{index}] {verdict.outcome.value}: {verdict.error} {verdict.reason}"
    if verdict.outcome is not Outcome.REFUSED:
        return f"{name}[{index}] runs now: take it off the list of refusals" if expected else ""
    if not expected:
        return f"{name}[{index}] refused: {verdict.error} {verdict.reason}"
    if known is not None and verdict.error != known.error:
        return f"{name}[{index}] refused with {verdict.error}, expected {known.error}"
    return ""
