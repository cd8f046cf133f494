"""Measure Pantile beside its peers.

    python -m benchmarks train --workloads W2,W1a --threads 1
    python -m benchmarks all --paddle-python PYTHON_WITH_PADDLE
    python -m benchmarks report                    only write the tables and pictures again

  train      time of a training step                  W1 to W5, Paddle's LeNet
  infer      time of a forward pass                   W6: batch 1 and the training batch
  compile    from imports done to the first step, with empty and with filled caches
  overhead   host time of a step beyond its arithmetic
  memory     peak memory of training steps
  growth     step time as D, G and R grow; capture as the graph grows
  peak       time of each kind of kernel, and how near they come to the core's limit; printed only
  halves     steps in bfloat16 and in float32, ours and eager's; printed only
  crowd      steps on two threads while another process takes one of the cores; printed only

Results go to results.json, results.md and ratios-*.png|svg in the output folder. A run adds to the
results of the run before, if machine, versions and engine are the same.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import child, crowd, halves, peak, picture, report, results
from benchmarks.peers import FAMILIES
from benchmarks.selection import Selection
from benchmarks.workloads import WORKLOADS

_PRINTED = {
    "peak": (peak.show, ("W3", "W4")),
    "crowd": (crowd.show, ("W1b", "W4")),
    "halves": (halves.show, ("W3",)),
}
_MODULES = {**{kind: kind for kind in results.KINDS}, "compile": "compile_time"}


def _listed(known: Sequence[str]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _counts(text: str) -> tuple[int, ...]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = tuple(int(part) for part in text.split(","))
    for count in counts:
        if not 1 <= count <= (cores or 1):
            raise argparse.ArgumentTypeError(f"{count} threads; this process may use {cores} cores")
    return counts


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def parsed(arguments: Sequence[str] | None = None) -> tuple[tuple[str, ...], Selection]:
    """The kinds of measurement asked for, and everything else."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kind", nargs="?", default="all", choices=[*results.KINDS, "all", "report", *_PRINTED])
    add("--workloads", type=_listed(list(WORKLOADS)), help=f"of {', '.join(WORKLOADS)}")
    add("--peers", type=_listed(FAMILIES), default=FAMILIES, help=f"of {', '.join(FAMILIES)}")
    add("--threads", type=_counts, help="numbers of threads (1 and 2, as far as there are cores)")
    add("--seconds", type=_positive, help="time for each peer of a measurement (5)")
    add("--quick", action="store_true", help="hardly any rounds: does everything run?")
    add("--engine", default="native", choices=["native", "reference", "tiered"])
    add("--paddle-python", help="an interpreter that can import paddle")
    add("--output", type=Path, default=Path("build/benchmarks"), help="folder (build/benchmarks)")
    given = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    kinds = {"all": results.KINDS, "report": ()}.get(given.kind, (given.kind,))
    return kinds, Selection(
        given.workloads,
        given.peers,
        given.threads or tuple(count for count in (1, 2) if count <= cores),
        given.seconds,
        given.quick,
        given.engine,
        given.paddle_python,
        given.output,
    )


def measured(kinds: Sequence[str], selection: Selection, file: Path) -> dict[str, Any]:
    """Run all tasks one after the other; the file is whole after each of them."""
    found = results.begin(selection, file)
    modules = {kind: importlib.import_module(f"benchmarks.{_MODULES[kind]}") for kind in kinds}
    tasks = [task for module in modules.values() for task in module.tasks(selection)]
    with tempfile.TemporaryDirectory(prefix="pantile-bench-caches-") as scratch:
        for index, task in enumerate(tasks, 1):
            print(f"[{index}/{len(tasks)}] {task.title}", file=sys.stderr, flush=True)
            environment = getattr(modules[task.kind], "environment", None)
            variables = environment(task, Path(scratch)) if environment else None
            results.add(found, task, child.run(task, variables))
            results.write(found, file)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; the exit code is 1 if any engine's results differ from eager's."""
    kinds, selection = parsed(arguments)
    if len(kinds) == 1 and kinds[0] in _PRINTED:
        show, usual = _PRINTED[kinds[0]]
        show(selection.workloads or usual)
        return 0
    file = selection.output / "results.json"
    found = measured(kinds, selection, file) if kinds else results.read(file)
    if found is None:
        print(f"no results in {file}: measure first", file=sys.stderr)
        return 2
    text = report.markdown(found)
    (selection.output / "results.md").write_text(text, encoding="utf-8")
    pictures = picture.draw(found, selection.output)
    print(text)
    print(f"written: {', '.join(str(path) for path in (file, *pictures))}", file=sys.stderr)
    records = [record for kind in ("train", "infer") for record in found[kind]]
    unequal = [record for record in records if not record.get("check", {}).get("equal", True)]
    failed = [record for kind in results.KINDS for record in found[kind] if "error" in record]
    for record in (*unequal, *failed):
        why = record.get("error", "results differ from eager's")
        print(f"{record['workload']}, {record['peer']}: {why}", file=sys.stderr)
    return 1 if unequal or failed else 0


if __name__ == "__main__":
    sys.exit(main())
