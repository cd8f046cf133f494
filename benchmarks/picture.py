"""The ratios as a picture: a bar for each workload and peer, with the spread of the rounds.

A bar ends at the ratio of the medians, the whiskers at the quartiles of the rounds; the diamond is
the ratio of the minima.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ratios import COLUMNS, Row, clock_for, columns_of, table

_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
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
    from matplotlib.patches import Patch

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
    patches = [Patch(color=_color(column), label=_label(column)) for column in columns]
    figure.legend(handles=patches, loc="lower center", ncols=3 * len(threads), frameon=False)
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
    """Workloads from top to bottom; a bar for each peer goes from 1 to the ratio of medians."""
    place, ticks = 0.0, []
    for row in rows:
        top = place
        for column in (column for column in columns if column in row.ratios):
            ratio = row.ratios[column]
            value, color = ratio.by_median, _color(column)
            spread = [[max(0.0, value - ratio.q1)], [max(0.0, ratio.q3 - value)]]
            axis.barh(place, value - 1, 0.85, left=1, color=color)
            axis.errorbar(value, place, xerr=spread, color="black", lw=0.8, capsize=2)
            axis.plot([ratio.by_min], [place], marker="D", color="black", mfc="white", ms=4)
            end = max(1.0, ratio.q3, ratio.by_min)
            axis.annotate(
                f"{value:.2f}",
                (end, place),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
            place += 1
        ticks.append(((top + place - 1) / 2, row.label))
        place += 1
    axis.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axis.invert_yaxis()
    _scale(axis)


def _label(column: str) -> str:
    return f"{column} (wall)" if clock_for(column, 1) == "wall" else column


def _color(column: str) -> str:
    return f"C{COLUMNS.index(column)}"


def _scale(axis: Any) -> None:
    """Ratios are compared on a logarithmic axis: twice as fast is as far from 1 as half."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    low, high = min(low, 0.8), max(high, 1.25) * 1.25  # room for the numbers
    axis.set_xlim(low, high)
    kept = [value for value in _TICKS if low <= value <= high]
    axis.minorticks_off()
    axis.set_xticks(kept, [f"{value:g}" for value in kept])
    axis.axvline(1.0, color="black", lw=1)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
