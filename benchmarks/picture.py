"""The ratios as a picture: a bar for each workload and peer, with the spread of the rounds."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ratios import Row, columns_of, table

_NAMES = {"train": "training step", "infer": "inference"}


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write `ratios-train.png`, `.svg` and so on; nothing without matplotlib or ratios."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    written = []
    for kind in _NAMES:
        rows = [row for row in table(kind, results[kind]) if row.ratios]
        if rows:
            written += _draw_kind(kind, rows, results["about"], folder)
    return written


def _draw_kind(kind: str, rows: Sequence[Row], about: dict[str, Any], folder: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pantile"  # the same picture gives the same file
    from matplotlib import pyplot

    threads = sorted({row.threads for row in rows})
    height = max(2.5, 0.26 * _most_bars(rows) + 1.4)
    figure, axes = pyplot.subplots(
        1, len(threads), figsize=(6.2 * len(threads), height), squeeze=False, sharey=False
    )
    columns = columns_of(rows)
    for axis, count in zip(axes[0], threads, strict=True):
        _bars(axis, [row for row in rows if row.threads == count], columns)
        clock = "CPU time" if count == 1 else "wall time"
        axis.set_title(f"{_NAMES[kind]}, {count} thread{'s' if count > 1 else ''}, {clock}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=min(len(labels), 5), frameon=False)
    machine, versions = about["machine"], about["versions"]
    figure.suptitle(
        f"peer time / Pantile time (engine {about['engine']}): right of 1, Pantile is faster\n"
        f"{about['date']}, {machine['cores']} cores {machine['cpu']}, torch {versions['torch']}",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0.9 / height, 1, 1))
    files = [folder / f"ratios-{kind}.{ending}" for ending in ("png", "svg")]
    for file in files:
        fixed = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=130, metadata=fixed)
    pyplot.close(figure)
    return files


def _most_bars(rows: Sequence[Row]) -> int:
    counts: dict[int, int] = {}
    for row in rows:
        counts[row.threads] = counts.get(row.threads, 0) + len(row.ratios) + 1
    return max(counts.values())


def _bars(axis: Any, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Workloads from top to bottom, one bar for each peer, error bars between the quartiles."""
    place, ticks = 0.0, []
    labelled: set[str] = set()
    for row in rows:
        top = place
        for index, column in enumerate(columns):
            ratio = row.ratios.get(column)
            if ratio is None:
                continue
            value = ratio.by_median
            spread = [[max(0.0, value - ratio.q1)], [max(0.0, ratio.q3 - value)]]
            label = None if column in labelled else column
            labelled.add(column)
            axis.barh(place, value, 0.85, color=f"C{index}", label=label)
            axis.errorbar(value, place, xerr=spread, color="black", lw=0.8, capsize=2)
            axis.plot([ratio.by_min], [place], marker="|", color="white", ms=7)
            place += 1
        ticks.append(((top + place - 1) / 2, row.label))
        place += 1
    axis.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.axvline(1.0, color="black", lw=1)
    shown = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    low, high = axis.get_xlim()
    kept = [value for value in shown if low <= value <= high]
    axis.set_xticks(kept, [f"{value:g}" for value in kept])
    axis.minorticks_off()
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
