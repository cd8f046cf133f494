"""`pantile report`: what a report says, in the terminal and as a page for a browser.

    pantile report profiles                    a summary; writes and opens training/report.html
    pantile report profiles --against other    … and comparison.html, which has both

The page is opened where there is somebody to look at it: a terminal on a machine with a display.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from pantile.errors import Error
from pantile.pva import openReport, report_file
from pantile.report_page import page
from pantile.store.atomic_file import write_atomically


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pantile report`."""
    parser = commands.add_parser("report", help="show a report written by enableProfiling(dir)")
    parser.add_argument("path", type=Path, help="the folder, or a file of it")
    parser.add_argument("--against", type=Path, metavar="PATH", help="compare with another report")
    parser.add_argument("--ops", type=int, default=10, metavar="N", help="the dearest ops")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page to this file")
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        help="open the page in a browser (default: in a terminal with a display)",
    )
    parser.add_argument("--json", action="store_true", help="the whole document, and no page")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print the report, write its page, open it."""
    data = _data(parsed.path)
    if parsed.json:
        print(json.dumps(data))
        return 0
    print(summary_text(data, ops=parsed.ops))
    other = None if parsed.against is None else _data(parsed.against)
    if other is not None:
        print(comparison_text(data, other))
    name = "report.html" if other is None else "comparison.html"
    file = parsed.page or report_file(parsed.path).with_name(name)
    write_atomically(file, [page(data, against=other).encode()])
    print(f"\nThe page: {file}")
    if parsed.open or (parsed.open is None and _somebody_looks()):
        webbrowser.open(file.resolve().as_uri())
    return 0


def _somebody_looks() -> bool:
    """Whether a browser would show up, and not a text browser in place of this terminal."""
    display = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return sys.stdout.isatty() and display


def _data(path: Path) -> dict[str, Any]:
    report = openReport(path)
    if not report.data:
        raise Error(
            f"{path} is a profile of the SDK: only its tiles and steps are read",
            fix="use pantile.pva.openReport in Python",
        )
    return report.data


def summary_text(data: dict[str, Any], *, ops: int = 10) -> str:
    """Verdict, stages, advice, the dearest ops."""
    summary, target = data["summary"], data["target"]
    lines = [
        f"{data['name']}, {data['kind']}, on {target['system']} (modelled), {data['created']}",
        f"{summary['verdict']}: fullest tile {summary['fullest_tile']:.0%}",
        f"{summary['samples_per_second']:,.0f} samples/s "
        f"(published results: {summary['samples_per_second_low']:,.0f} to "
        f"{summary['samples_per_second_high']:,.0f}), bubble {summary['bubble']:.0%}, "
        f"balance {summary['balance']:.0%}",
        "",
        "IPU      ms   full   weights  accumul.    state     stash  activat.      temp      code",
    ]
    for stage in data["stages"]:
        memory = stage["memory"]
        parts = ("weights", "accumulators", "optimizer_state", "stash", "activations", "temporary")
        sizes = [memory[name] for name in parts]
        sizes.append(memory["code"] + memory["exchange_code"] + memory["vertex_state"])
        lines.append(
            f"{stage['ipu']:3} {stage['seconds']['micro_batch'] * 1e3:7.3f} "
            f"{memory['fullest_tile']:6.0%} " + " ".join(f"{s / 1e6:7.1f}MB" for s in sizes)
        )
    if summary["verdict"] != "fits":
        lines += ["", "To free memory:"]
        lines += [
            f"  {change['what']}: frees {change['freed_bytes'] / 1e6:,.0f} MB, then "
            f"{change['fraction']:.0%} full, {change['slowdown']:.2f} x the time  ({change['how']})"
            for change in data["changes"][:5]
        ]
    lines += ["", *summary["hints"][:5]] if summary["hints"] else []
    return "\n".join([*lines, "", *_dearest(data, ops)])


def _dearest(data: dict[str, Any], count: int) -> list[str]:
    rows = sorted(data["ops"], key=lambda op: -op["cycles"])[:count]
    total = sum(op["cycles"] for op in data["ops"]) or 1.0
    lines = ["    cycles  share  use of peak  op"]
    lines += [
        f"{op['cycles']:10,.0f} {op['cycles'] / total:6.1%} {op['utilisation']:12.1%}  "
        f"{op['op']} {op['phase']} {op['module']} {op['source']}".rstrip()
        for op in rows
    ]
    return lines


def comparison_text(data: dict[str, Any], other: dict[str, Any]) -> str:
    """Two reports side by side."""
    names = ("samples_per_second", "seconds_per_update", "fullest_tile", "bubble", "balance")
    lines = ["", f"{'':22} {'this':>14} {'other':>14} {'ratio':>8}"]
    for name in names:
        mine, theirs = data["summary"][name], other["summary"][name]
        ratio = f"{mine / theirs:8.3f}" if theirs else "       –"
        lines.append(f"{name:22} {mine:14.4g} {theirs:14.4g} {ratio}")
    return "\n".join(lines)
