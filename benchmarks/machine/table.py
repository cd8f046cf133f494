"""The table of published results: predicted, published, error, and what constant utilisation says.

Factors are fitted to the points marked `calibrate`, each to the points of its own kind; the errors
that count are those of the other points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from benchmarks.machine.published import TRANSFORMERS, load, run_of
from pantile.machine.calibration import Calibration
from pantile.machine.memory import memory_of, verdict_of
from pantile.machine.products import Product, spread
from pantile.machine.targets import C600, chip_named

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
                point["suggested_role"] == "calibrate",
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


def main() -> None:
    """Print the factors, the table and the means."""
    data = load()
    points = data["end_to_end"]
    calibration = fit(points)
    rows = rows_of(points, calibration)
    print(json.dumps({"general": calibration.general, "convolution": calibration.convolution}))
    print(markdown(rows))
    for family in ("transformer", "cnn"):
        free = [row for row in rows if row.family == family and not row.fitted]
        known = [row for row in free if row.baseline is not None]
        print(
            f"{family}: mean error {mean_error(free):.1%} of {len(free)} points; where utilisation "
            f"is known {mean_error(known):.1%} against {mean_baseline_error(known):.1%}"
        )
    for name, dtype, predicted, measured in matmul_rows(data):
        print(f"{name} {dtype}: {predicted:,.0f} cycles, measured {measured:,.0f}")
