"""docs/conformance.md, made of the rows and of what their checks said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.table import Row

_PROBED = Path(__file__).with_name("probed.md")
PATH = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"

_HEAD = """# Conformance

What PopTorch 3.4 promises, name by name, against the code. The rows are in
`tests/conformance/rows`, written in our own words from PopTorch's documentation and behaviour. Each
row is executed: names are looked up, signatures compared, options set and read back, mistakes made.
`scripts/conformance` runs them all and writes this page; the test-suite runs every row and compares
the page.

"""

# Heading, what it says, and the headings of the columns after the first one.
_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Names": ("Every public name is there.", "name", ()),
    "Signatures": (
        "Parameters and defaults. Ours may have more, by keyword.",
        "callable",
        ("parameters",),
    ),
    "Enums": ("Members and their values.", "enum", ("members",)),
    "Options": (
        "What is stored at first, and what after a call; `opts` is a fresh `Options`.",
        "call",
        ("before", "after"),
    ),
    "Errors": (
        "A mistake, the class a script can catch, words of the message. *strict*: refused in "
        "strict mode only; the others are refused in both.",
        "mistake",
        ("class", "words", "mode"),
    ),
    "Behaviour": ("What ops and executors do.", "what", ("mode",)),
    "Limits": (
        "Limits of PopTorch that are gone by default, and what strict mode does.",
        "limit",
        ("by default", "in strict mode"),
    ),
    "Environment": ("Variables of the environment.", "variable", ("meaning",)),
}


def text(results: Mapping[str, str | None], rows: Sequence[Row]) -> str:
    """The page. `results` has for each row None, or what is wrong."""
    tables = {name: [row for row in rows if row.table == name] for name in _TABLES}
    holds = Counter(row.table for row in rows if results[row.key] is None)
    lines = [_HEAD + "| table | rows | hold |", "|---|---:|---:|"]
    lines += [f"| {name} | {len(found)} | {holds[name]} |" for name, found in tables.items()]
    lines.append(f"| **all** | **{len(rows)}** | **{holds.total()}** |")
    for name, found in tables.items():
        lines += ["", f"## {name}", "", *_table(name, found, results)]
    return "\n".join(lines) + "\n\n" + _PROBED.read_text()


def _table(name: str, rows: Sequence[Row], results: Mapping[str, str | None]) -> list[str]:
    what, first, columns = _TABLES[name]
    if name == "Names":
        return [what, "", "| group | names |", "|---|---|", *_grouped(rows, results)]
    head = [first, *columns]
    lines = [what, "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.title, *row.details][: len(head)]
        cells[0] += "" if results[row.key] is None else " **differs**"
        plain = name in ("Behaviour", "Errors", "Limits")
        shown = [_cell(cell, code=not plain or i > 0) for i, cell in enumerate(cells)]
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def _grouped(rows: Sequence[Row], results: Mapping[str, str | None]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for row in rows:
        mark = "" if results[row.key] is None else " **differs**"
        groups.setdefault(row.group, []).append(f"`{row.title}`{mark}")
    return [f"| {group} | {', '.join(names)} |" for group, names in groups.items()]


def _cell(cell: str, *, code: bool) -> str:
    safe = cell.replace("|", "\\|").replace("\n", " ").strip()
    return f"`{safe}`" if code and safe else safe
