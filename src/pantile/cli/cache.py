"""`pantile cache`: see, find and clear the executables that were compiled.

    pantile cache list [--json]             what is there
    pantile cache clear [--older-than 30d]  delete all, or what was not used for 30 days
    pantile cache path                      where it is

All take `--dir D`; else the folder is `$POPTORCH_CACHE_DIR`, else the user's own cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pantile.errors import StoreError
from pantile.store.cache import EntryInfo, ExecutableCache, default_cache

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")


def add(commands: Commands) -> None:
    """Add `pantile cache` to the command line."""
    parser = commands.add_parser(
        "cache", help="list or clear compiled executables", description="The executable cache."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--dir", type=Path, metavar="D", help="the cache folder, if another one")

    listing = actions.add_parser("list", parents=[folder], help="show what is there")
    listing.add_argument("--json", action="store_true", help="for programs: one JSON array")
    listing.set_defaults(run=_list)

    clearing = actions.add_parser("clear", parents=[folder], help="delete entries")
    clearing.add_argument(
        "--older-than",
        type=_duration,
        metavar="AGE",
        help="only those not used for so long: 90s, 15m, 12h, 30d or 2w",
    )
    clearing.set_defaults(run=_clear)

    path = actions.add_parser("path", parents=[folder], help="show where it is")
    path.set_defaults(run=_path)


def _list(arguments: argparse.Namespace) -> int:
    cache = _cache(arguments)
    infos = cache.entries()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(info) for info in infos], indent=2))
        return 0
    now = time.time()
    for line in _table([_row(info, now) for info in infos]):
        print(line)
    print(f"{_total(infos)}, in {cache.folder}")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    cache = _cache(arguments)
    longest: float | None = arguments.older_than
    now = time.time()
    removed = []
    for info in cache.entries():
        if (longest is None or now - info.used > longest) and cache.remove(info.key):
            removed.append(info)
            print(f"removed {info.key[:12]}  {_size(info.size)}  {_what(info)}")
    cache.sweep()
    print(f"removed {_total(removed)}, from {cache.folder}")
    return 0


def _path(arguments: argparse.Namespace) -> int:
    print(_cache(arguments).folder)
    return 0


def _cache(arguments: argparse.Namespace) -> ExecutableCache:
    if arguments.dir is not None and not arguments.dir.is_dir():
        raise StoreError(f"--dir {arguments.dir} is not a folder", fix="check the path")
    named = arguments.dir or os.environ.get("POPTORCH_CACHE_DIR")
    return ExecutableCache(Path(named), limit_bytes=None) if named else default_cache()


def _row(info: EntryInfo, now: float) -> tuple[str, ...]:
    used, age = _ago(now - info.used), _ago(now - info.created)
    return (info.key[:12], _what(info), _size(info.size), age, used)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines with columns as wide as their widest cell."""
    if not rows:
        return []
    table = [("key", "what", "size", "age", "last used"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    right = (False, False, True, True, True)
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def _what(info: EntryInfo) -> str:
    """Its name, in characters that cannot move the cursor, or why it cannot be used."""
    text = info.name if info.problem is None else f"(not usable: {info.problem})"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _total(infos: list[EntryInfo]) -> str:
    plural = "" if len(infos) == 1 else "s"
    return f"{len(infos)} executable{plural}, {_size(sum(info.size for info in infos))}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _ago(seconds: float) -> str:
    """A time span in its largest whole unit; a clock that was set back counts as now."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{int(seconds // _SECONDS[unit])} {unit}"
    return f"{int(max(seconds, 0))} s"


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 90s, 15m, 12h, 30d or 2w")
    return float(found[1]) * _SECONDS[found[2]]
