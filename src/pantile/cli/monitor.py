"""`pantile monitor`: what runs on the software IPUs now, in the layout of `gc-monitor`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pantile
from pantile.runtime.registry import Running, running

_LINE = 118


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pantile monitor`."""
    parser = commands.add_parser("monitor", help="show the executors that run now")
    arguments(parser)
    parser.set_defaults(run=run)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--json", "-j", action="store_true", help="as JSON")
    parser.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    parser.add_argument(
        "--interval", type=float, default=0.5, metavar="SECONDS", help="time to count calls over"
    )
    parser.add_argument("--no-card-info", action="store_true", help="only the processes")


def run(parsed: argparse.Namespace) -> int:
    """Print the table once, or until interrupted."""
    while True:
        rows = sample(max(0.0, parsed.interval))
        print(json.dumps(rows, indent=2) if parsed.json else _table(rows, parsed.no_card_info))
        if not parsed.watch:
            return 0


def sample(seconds: float) -> list[dict[str, Any]]:
    """The running executors, with calls a second counted over a while."""
    before, start = _calls(running()), time.monotonic()
    if before and seconds:
        time.sleep(seconds)
    now, elapsed = running(), time.monotonic() - start
    rows = []
    for item in now:
        key = (item.entry.pid, item.entry.since)
        rate = (item.calls - before.get(key, item.calls)) / elapsed if elapsed > 0 else 0.0
        rows.append(
            {
                **asdict(item.entry),
                "calls": item.calls,
                "calls_per_second": rate,
                "samples_per_second": rate * item.entry.samples_per_call,
                "resident_bytes": item.resident_bytes,
                "seconds": time.time() - item.entry.since,
            }
        )
    return rows


def _calls(found: Sequence[Running]) -> dict[tuple[int, float], int]:
    return {(item.entry.pid, item.entry.since): item.calls for item in found}


def _table(rows: Sequence[dict[str, Any]], only_processes: bool) -> str:
    lines = []
    if not only_processes:
        lines += _box(
            f"pantile monitor     Partition: virtual [active] has {_ipus(rows)} software IPUs     "
            f"pantile {pantile.__version__}"
        )
    if not rows:
        return "\n".join([*lines, *_box("No attached processes in partition virtual")])
    lines += _box("Attached processes in partition virtual")
    lines.append(
        f"|{'PID':>8} | {'Command':24} | {'Time':>7} | {'User':10} | {'IPUs':>5} | "
        f"{'Kind':9} | {'Calls':>8} | {'Calls/s':>8} | {'Samples/s':>9} | {'Memory':>8} |"
    )
    lines.append("+" + "-" * (_LINE - 2) + "+")
    lines += [_row(row) for row in rows]
    lines.append("+" + "-" * (_LINE - 2) + "+")
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
    ipus = row["ipus_per_replica"] * row["replicas"]
    return (
        f"|{row['pid']:>8} | {row['command'][:24]:24} | {row['seconds']:>6.0f}s | "
        f"{row['user'][:10]:10} | {ipus:>5} | {row['kind']:9} | {row['calls']:>8} | "
        f"{row['calls_per_second']:>8.1f} | {row['samples_per_second']:>9.0f} | "
        f"{row['resident_bytes'] / 1e6:>6.0f}MB |"
    )


def _ipus(rows: Sequence[dict[str, Any]]) -> int:
    return max((row["ipus_per_replica"] * row["replicas"] for row in rows), default=16)


def _box(text: str) -> list[str]:
    rule = "+" + "-" * (_LINE - 2) + "+"
    return [rule, f"|{text[: _LINE - 2]:^{_LINE - 2}}|", rule]
