"""The table of published results: predicted, published, error, and what constant utilisation says.

Factors are fitted to the points marked `calibrate`, each to the points of its own kind; that for
several hosts to the one marked `calibrate hosts`. The errors that count are those of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.machine.published import FILE, LAST, MORE, TRANSFORMERS, load, run_of
from pantile.machine.calibration import Calibration
from pantile.machine.memory import memory_of, verdict_of
from pantile.machine.products import Product, spread
from pantile.machine.targets import C600, adjusted, chip_named

PAGE = Path(__file__).parents[2] / "docs" / "machine-model.md"
BEGIN, END = "<!-- table: python -m benchmarks.machine --write -->", "<!-- end of the table -->"
_PEAK = "float16"


@dataclass(frozen=True)
class Row:
    """One point."""

    id: str
    model: str
    family: str
    ipus: int
    unit: str
    published: float
    predicted: float
    baseline: float | None
    fitted: bool
    confidence: str
    verdict: str
    fullest: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.published - 1

    @property
    def baseline_error(self) -> float | None:
        """Relative error of constant utilisation."""
        return None if self.baseline is None else self.baseline / self.published - 1


def fit(points: Sequence[dict[str, Any]]) -> Calibration:
    """The two factors: transformers give the general one, a CNN the one of convolutions."""
    fitted = [point for point in points if point["suggested_role"] == "calibrate"]
    raw = Calibration(1.0, 1.0)
    general = _geometric_mean(
        run_of(point, raw).throughput() / point["throughput"]
        for point in fitted
        if point["model"] in TRANSFORMERS
    )
    nets = [point for point in fitted if point["model"] not in TRANSFORMERS]
    convolution = 1.0
    for _ in range(12):  # the factor weighs on a part of the time only: approach it
        guess = Calibration(general, convolution)
        convolution *= _geometric_mean(
            run_of(point, guess).throughput() / point["throughput"] for point in nets
        )
    return Calibration(round(general, 3), round(convolution, 3))


def several_hosts(points: Sequence[dict[str, Any]]) -> float:
    """How much longer than predicted PyTorch takes when several hosts drive it.

    Fitted to how models scale, not to how fast they are: on many IPUs against the same on few.
    """
    known = {point["id"]: point for point in points}
    ratios = []
    for many in (p for p in points if p["suggested_role"] == "calibrate hosts"):
        few = known[many["scaled_from"]]
        runs = [run_of(point, Calibration()) for point in (many, few)]
        system = adjusted(runs[0].configuration.system, {"several_hosts_factor": 1.0})
        alone = replace(runs[0], configuration=replace(runs[0].configuration, system=system))
        scaling = alone.throughput() / runs[1].throughput()
        ratios.append(scaling / (many["throughput"] / few["throughput"]))
    return round(_geometric_mean(ratios), 3)


def rows_of(points: Sequence[dict[str, Any]], calibration: Calibration) -> list[Row]:
    """A row for each point."""
    utilisation = {
        family: sum(values) / len(values)
        for family, values in _calibrated_utilisation(points).items()
    }
    rows = []
    for point in points:
        run = run_of(point, calibration)
        memories = memory_of(run.units(), run.configuration)
        chip = run.settings.chip
        family = family_of(point)
        rows.append(
            Row(
                point["id"],
                point["model"],
                family,
                point["num_ipus"],
                point["unit"],
                point["throughput"],
                run.throughput(),
                _baseline(point, utilisation[family]),
                point["suggested_role"].startswith("calibrate"),
                point["config_confidence"],
                verdict_of(memories, chip),
                max(memory.fraction(chip) for memory in memories),
            )
        )
    return rows


def family_of(point: dict[str, Any]) -> str:
    """`transformer` or `cnn`."""
    known = point["model"] in TRANSFORMERS or "Conformer" in point["model"]
    return "transformer" if known else "cnn"


def matmul_rows(data: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Operation, type, predicted and measured cycles of the measured products."""
    found = []
    for row in data["vertex_level"]["rows"]:
        for dtype, key in (("float16", "measured_cycles_fp16"), ("float8", "measured_cycles_fp8")):
            product = Product(row["groups"], row["M"], row["K"], row["N"], dtype)
            found.append((row["op"], dtype, spread(C600, product).compute, float(row[key])))
    return found


def mean_error(rows: Iterable[Row]) -> float:
    """Mean of the absolute errors."""
    errors = [abs(row.error) for row in rows]
    return sum(errors) / len(errors)


def mean_baseline_error(rows: Iterable[Row]) -> float:
    """Mean of the absolute errors of constant utilisation, where it says anything."""
    errors = [abs(row.baseline_error) for row in rows if row.baseline_error is not None]
    return sum(errors) / len(errors)


def markdown(rows: Sequence[Row]) -> str:
    """The table for the documentation."""
    lines = [
        "| point | IPUs | published | predicted | error | constant utilisation | fullest tile |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        base = "–" if row.baseline_error is None else f"{row.baseline_error:+.0%}"
        error = "fitted" if row.fitted else f"{row.error:+.1%}"
        lines.append(
            f"| {row.id} | {row.ipus} | {row.published:,.0f} {row.unit} | {row.predicted:,.0f} | "
            f"{error} | {base} | {row.fullest:.0%} |"
        )
    return "\n".join(lines)


def _calibrated_utilisation(points: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for point in points:
        if point["suggested_role"] == "calibrate":
            found.setdefault(family_of(point), []).append(_utilisation(point))
    return found


def _utilisation(point: dict[str, Any]) -> float:
    peak = chip_named(point["ipu_kind"]).peak_flops(_PEAK) * point["num_ipus"]
    return float(point["model_flops_per_item"] * point["throughput"] / peak)


def _baseline(point: dict[str, Any], utilisation: float) -> float | None:
    flops = point.get("model_flops_per_item")
    if not flops:
        return None
    peak = chip_named(point["ipu_kind"]).peak_flops(_PEAK) * point["num_ipus"]
    return utilisation * peak / flops


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def text() -> str:
    """All tables with their means, as the documentation shows them."""
    data = load()
    points = data["end_to_end"]
    calibration = Calibration()
    first = rows_of(points, calibration)
    fitted = [point for point in points if point["suggested_role"] == "calibrate"]
    second, third = (
        rows_of([*fitted, *load(file)["end_to_end"]], calibration)[len(fitted) :]
        for file in (MORE, LAST)
    )
    products = [
        f"| {name} | {dtype} | {measured:,.0f} | {predicted:,.0f} | "
        f"{predicted / measured - 1:+.1%} |"
        for file in (FILE, LAST)
        for name, dtype, predicted, measured in matmul_rows(load(file))
    ]
    return "\n".join(
        [
            *(markdown(first), "", *_means(first), ""),
            "Points that nothing was fitted to, first looked at when the model was finished:",
            *("", markdown(second), "", *_means(second), ""),
            "More of them, looked up later still; what was changed after that is said below:",
            *("", markdown(third), "", *_means(third), ""),
            "Products on a C600, cycles of the longest tile; the last six were looked up last:",
            *("", "| product | type | measured | predicted | error |", "|---|---|---|---|---|"),
            *products,
        ]
    )


def _means(rows: Sequence[Row]) -> list[str]:
    lines = []
    for family, name in (("transformer", "Transformers"), ("cnn", "Convolutional networks")):
        free = [row for row in rows if row.family == family and not row.fitted]
        known = [row for row in free if row.baseline is not None]
        lines.append(
            f"{name}: mean error **{mean_error(free):.1%}** of {len(free)} points; of the "
            f"{len(known)} whose operations are counted {mean_error(known):.1%}, where constant "
            f"utilisation has {mean_baseline_error(known):.1%}."
        )
    return [lines[0], "", lines[1]]


def written(page: str, table: str) -> str:
    """The page with another table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the documentation; `--fit` fits the factors anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine", description=main.__doc__)
    parser.add_argument("--fit", action="store_true", help="print the factors a fit gives")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parsed = parser.parse_args(arguments)
    if parsed.fit:
        print(fit(load()["end_to_end"]))
    elif parsed.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), text()), encoding="utf-8")
    else:
        print(text())
