"""Results as Markdown: ratios, bars, times, checks, and what could not be measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks import bars
from benchmarks.ratios import Record, Row, clock_for, columns_of, table

_QUARTILES = ("q1", "median", "q3")
_TITLES = {"train": "Training step", "infer": "Inference (W6)"}


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    lines = ["# Benchmark results", "", *_about(results["about"]), ""]
    for kind in ("train", "infer"):
        lines += _ratio_section(kind, table(kind, results[kind]))
    lines += _bar_section(results)
    for kind in ("train", "infer"):
        lines += _time_section(kind, table(kind, results[kind]))
    lines += _compile_section(results["compile"])
    lines += _overhead_section(results["overhead"])
    lines += _memory_section(results["memory"])
    lines += _growth_section(results["growth"])
    lines += _check_section(results)
    lines += _missing_section(results)
    return "\n".join(lines).rstrip() + "\n"


def _about(about: dict[str, Any]) -> Iterator[str]:
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    yield f"Measured {about['date']} on {machine['cores']} cores of {machine['cpu']}."
    yield f"Engine `{about['engine']}`; {versions}."
    if about["quick"]:
        yield ""
        yield "**A quick run: it shows that everything works; its times mean nothing.**"


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body, ""] if body else []


def _by_threads(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    for threads in sorted({row.threads for row in rows}):
        yield threads, [row for row in rows if row.threads == threads]


def _heading(kind: str, threads: int, suffix: str) -> str:
    clock = "CPU time" if clock_for("eager", threads) == "cpu" else "wall time"
    return f"## {_TITLES[kind]}, {threads} thread{'s' if threads > 1 else ''}: {suffix} ({clock})"


def _ratio_section(kind: str, rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for threads, some in _by_threads(rows):
        columns = columns_of(some)
        if not columns:
            continue
        lines += [_heading(kind, threads, "peer time / Pantile time"), ""]
        lines += [
            "More than 1: Pantile is faster. Ratio of the minima / of the medians (quartiles of "
            "the rounds). JAX: wall time unless it says CPU; its scan of 8 against Pantile's 8 "
            "steps a call.",
            "",
        ]
        lines += _grid(["workload", *columns], (_ratio_cells(row, columns) for row in some))
    return lines


def _ratio_cells(row: Row, columns: Sequence[str]) -> list[str]:
    cells = [row.label]
    for column in columns:
        ratio = row.ratios.get(column)
        variant = f" {ratio.peer}" if ratio and ratio.column == "eager" else ""
        cells.append(f"{ratio.text()}{variant}" if ratio else "–")
    return cells


def verdicts(results: dict[str, Any]) -> list[bars.Verdict]:
    """All bars that the results speak about."""
    return [
        *bars.of_training(table("train", results["train"])),
        *bars.of_inference(table("infer", results["infer"])),
        *bars.of_compilation(results["compile"]),
        *bars.of_overhead(results["overhead"]),
        *bars.of_memory(results["memory"]),
        *bars.of_growth(results["growth"]),
    ]


def _bar_section(results: dict[str, Any]) -> list[str]:
    found = [
        [
            verdict.what,
            f"{verdict.measured:.2f} {verdict.unit}",
            f"{'≤' if verdict.at_most else '≥'} {verdict.first:.2f}",
            f"{'≤' if verdict.at_most else '≥'} {verdict.stretch:.2f}",
            verdict.reached,
        ]
        for verdict in verdicts(results)
    ]
    head = ["bar", "measured (minima)", "first", "stretch", "reached"]
    return ["## Bars", "", *_grid(head, found)] if found else []


def _micros(clock: dict[str, Any]) -> str:
    return f"{clock['min'] * 1e6:.1f} / {clock['median'] * 1e6:.1f}"


def _time_section(kind: str, rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for threads, some in _by_threads(rows):
        cells = [
            [row.label, peer, _micros(record["cpu"]), _micros(record["wall"])]
            for row in some
            for peer, record in row.records.items()
        ]
        lines += [_heading(kind, threads, "µs a step").rsplit(" (", 1)[0], ""]
        lines += _grid(["workload", "peer", "CPU, min / median", "wall, min / median"], cells)
    return lines


def _compile_section(records: Sequence[Record]) -> list[str]:
    cells = [
        [
            record["workload"],
            record["peer"],
            record["start"],
            f"{record['seconds_compiling']:.2f}" if "seconds_compiling" in record else "–",
            f"{record['seconds_to_prepared']:.2f}",
            f"{record['seconds_to_first_step']:.2f}",
            f"{record['seconds_to_second_step']:.2f}",
            f"{record['cpu_seconds']:.1f}",
        ]
        for record in records
        if "seconds_to_prepared" in record
    ]
    times = ["compiling", "prepared", "first step", "second step", "CPU in all"]
    head = ["workload", "peer", "caches", *times]
    text = (
        "From imports done, in a new process, wall seconds; the last column is CPU seconds. "
        "`compiling` is the part of `prepared` that writes C++, compiles it and checks a run."
    )
    return ["## Compilation", "", text, "", *_grid(head, cells)] if cells else []


def _overhead_section(records: Sequence[Record]) -> list[str]:
    lines: list[str] = []
    empty = [record for record in records if record.get("way") == "empty model"]
    cells = [
        [record["peer"], _micros(record["cpu"]), _micros(record["wall"])]
        for record in empty
        if "cpu" in record
    ]
    if cells:
        lines += ["## Host time: a step of an empty model (W0), µs", ""]
        lines += _grid(["peer", "CPU, min / median", "wall, min / median"], cells)
    found = [
        [record["workload"], clock, *_intercept_cells(record[clock])]
        for record in records
        if record.get("way") == "intercept" and "cpu" in record
        for clock in ("cpu", "wall")
    ]
    if found:
        lines += ["## Host time: intercept over device iterations, µs", ""]
        head = ["workload", "clock", "host, of minima", "host, median (quartiles)", "inside"]
        lines += _grid(head, found)
    return lines


def _intercept_cells(found: dict[str, Any]) -> list[str]:
    q1, median, q3 = (found["host_seconds_of_rounds"][part] * 1e6 for part in _QUARTILES)
    host, inside = found["host_seconds"] * 1e6, found["step_seconds"] * 1e6
    return [f"{host:.1f}", f"{median:.1f} ({q1:.1f}–{q3:.1f})", f"{inside:.1f}"]


def _memory_section(records: Sequence[Record]) -> list[str]:
    cells = [
        [record["workload"], record["peer"], record["start"]]
        + [f"{record[part] / 2**20:.0f}" for part in ("peak", "beyond_imports", "whole_process")]
        for record in records
        if "peak" in record
    ]
    head = ["workload", "peer", "caches", "peak of steps", "… beyond imports", "whole process"]
    return ["## Memory, MiB", "", *_grid(head, cells)] if cells else []


def _growth_section(records: Sequence[Record]) -> list[str]:
    cells = [
        [
            f"{record['workload']}, {record['axis']}",
            str(record["threads"]),
            str(record["count"]),
            _micros(record["cpu"]),
            _micros(record["wall"]),
        ]
        for record in records
        if "count" in record
    ]
    text = "µs per micro-batch; for the graph, of capture and passes, by layers."
    head = ["series", "threads", "count", "CPU, min / median", "wall, min / median"]
    return ["## Growth", "", text, "", *_grid(head, cells)] if cells else []


def _check_section(results: dict[str, Any]) -> list[str]:
    cells = []
    for kind in ("train", "infer"):
        for record in (record for record in results[kind] if "check" in record):
            check = record["check"]
            if kind == "train":
                parts = ("at_start", "after_1_step", "after_3_steps")
                apart = " / ".join(f"{check[f'difference_{part}']:.1e}" for part in parts)
            else:
                apart = f"{check['difference']:.1e}"
            where = f"{record['workload']}, batch {record['rows']}"
            equal = "yes" if check["equal"] else "**no**"
            cells.append([kind, where, str(record["threads"]), record["peer"], apart, equal])
    text = (
        "Relative difference from eager: of the loss before any update / after one / after three "
        "(training, dropout 0), of the outputs (inference). Equal: at most 1e-4."
    )
    head = ["kind", "workload", "threads", "peer", "difference", "equal"]
    return ["## Results against eager", "", text, "", *_grid(head, cells)] if cells else []


def _missing_section(results: dict[str, Any]) -> list[str]:
    found: list[list[str]] = []
    for kind, records in results.items():
        if kind == "about":
            continue
        for record in records:
            for why in ("skipped", "error"):
                if why in record:
                    where = f"{kind} {record['workload']}, {record['threads']}"
                    text = " ".join(str(record[why]).split())[:200].replace("|", "\\|")
                    found.append([where, record["peer"], f"{why}: {text}"])
            for note in record.get("notes", ()):
                where = f"{kind} {record['workload']}, {record['threads']}"
                text = " ".join(note.split())[:200].replace("|", "\\|")
                found.append([where, record["peer"], f"note: {text}"])
    head = ["what", "peer", "why"]
    return ["## Not measured, and notes", "", *_grid(head, found)] if found else []
