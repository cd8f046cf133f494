"""`pantile monitor`: what runs on the software IPUs now, in the layout of `gc-monitor`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pantile
from pantile.cli.info import DEVICES
from pantile.runtime.estimate import chip_of_environment
from pantile.runtime.registry import Running, running

_LINE = 134
_RULE = "+" + "-" * (_LINE - 2) + "+"
_PARTITION = "virtual"


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
                "ipus": list(item.entry.ipus),
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
    chip, ipus = chip_of_environment(), _ipus(rows)
    lines = [] if only_processes else _cards(ipus)
    if not rows:
        return "\n".join([*lines, *_box(f"No attached processes in partition {_PARTITION}")])
    lines += _box(f"Attached processes in partition {_PARTITION}")
    lines.append(
        f"|{'PID':>8} | {'Command':20} | {'Time':>6} | {'User':8} | {'ID':>3} | {'Clock':>7} | "
        f"{'Temp':>4} | {'Kind':9} | {'Calls':>8} | {'Calls/s':>8} | {'Samples/s':>9} | "
        f"{'Memory':>8} |"
    )
    lines.append(_RULE)
    for row in rows:
        lines += [_row(row, ipu, f"{chip.clock_hz / 1e6:.0f}MHz") for ipu in row["ipus"]]
    return "\n".join([*lines, _RULE])


def _row(row: dict[str, Any], ipu: int, clock: str) -> str:
    """One IPU of a process; its figures are those of the process and stand once."""
    figures = (
        f"{row['calls']:>8} | {row['calls_per_second']:>8.1f} | "
        f"{row['samples_per_second']:>9.0f} | {row['resident_bytes'] / 1e6:>6.0f}MB |"
    )
    blank = f"{'':>8} | {'':>8} | {'':>9} | {'':>8} |"
    return (
        f"|{row['pid']:>8} | {row['command'][:20]:20} | {row['seconds']:>5.0f}s | "
        f"{row['user'][:8]:8} | {ipu:>3} | {clock:>7} | {'N/A':>4} | {row['kind']:9} | "
        f"{figures if ipu == row['ipus'][0] else blank}"
    )


def _cards(ipus: int) -> list[str]:
    """The IPUs there are, in the columns of the old table; what only hardware has is N/A."""
    version = pantile.__version__
    lines = _box(
        f"gc-monitor     Partition: {_PARTITION} [active] has {ipus} reconfigurable IPUs     "
        f"pantile {version}, software IPUs"
    )
    lines.append(
        f"|{'IPU-M':^11}|{'Serial':^20}|{'IPU-M SW':^12}|{'Server version':^16}|{'ICU FW':^9}|"
        f"{'Type':^12}|{'ID':^6}|{'IPU#':^6}|{'Routing':^{_LINE - 102}}|"
    )
    lines.append(_RULE)
    for ipu in range(ipus):
        lines.append(
            f"|{'virtual':^11}|{f'virtual.{ipu // 4}':^20}|{'N/A':^12}|{version:^16}|{'N/A':^9}|"
            f"{'virtual':^12}|{ipu:^6}|{ipu % 4:^6}|{'DNC':^{_LINE - 102}}|"
        )
    return [*lines, _RULE]


def _ipus(rows: Sequence[dict[str, Any]]) -> int:
    return max([DEVICES, *(1 + max(row["ipus"], default=-1) for row in rows)])


def _box(text: str) -> list[str]:
    return [_RULE, f"|{text[: _LINE - 2]:^{_LINE - 2}}|", _RULE]
