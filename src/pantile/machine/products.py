"""How a matrix product or convolution is spread over the tiles, and what that costs.

             rows M                A product of G groups of M x K by K x N is cut into
          ┌────────┐               gs x ms x ks x ns pieces, one for each tile. Then
    K     │ ms     │               every tile  receives its rows and its columns (exchange),
          │   ks   │                           multiplies on the matrix unit (compute),
          └────────┘                           and if K was cut, sums of pieces are exchanged
             columns N (ns)                    and added (reduce).

The search takes all useful cuts, both orders of the operands, and serial parts of N where the
pieces would not fit into the proportion of memory that is available. The constants of a vertex are
facts of poplibs' estimators (see NOTICE).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pantile.machine.targets import Chip

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ELEMENT_BYTES = {"float16": 2, "float32": 4, "float8": 1}
_INNER_GRAIN = {"float16": 16, "float32": 8, "float8": 32}
_SERIAL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_INNER_CUTS = 64
_WEIGHT_LOAD = 64
"""Cycles to load one block of weights into the matrix unit, 8 bytes at a time."""


@dataclass(frozen=True)
class Product:
    """G groups of (rows x inner) times (inner x columns), for each of `taps` kernel positions.

    A convolution is a product whose rows are output pixels in lines of `row_width`. Its windows
    overlap by `overlap` pixels, and a tile reads `input_scale` times its rows of input.
    """

    groups: int
    rows: int
    inner: int
    columns: int
    dtype: str = "float16"
    partials: str = "float16"
    taps: int = 1
    row_width: int = 0
    overlap: float = 0.0
    input_scale: float = 1.0

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.groups * self.rows * self.inner * self.columns * self.taps


@dataclass(frozen=True)
class Spread:
    """A product as it is spread over the tiles."""

    cycles: float
    compute: float
    exchange: float
    reduce: float
    steps: int
    temporary_bytes: int
    tiles: int
    cuts: tuple[int, int, int, int]
    serial: int
    piece: tuple[int, int, int]
    swapped: bool
    within_memory: bool

    @property
    def grid(self) -> str:
        """`groups x rows x inner x columns`, and serial parts."""
        serial = f", {self.serial} serial parts" if self.serial > 1 else ""
        return "x".join(map(str, self.cuts)) + serial


def vertex_cycles(chip: Chip, product: Product, groups: Any, m: Any, k: Any, n: Any) -> Any:
    """Cycles of one tile for `groups` pieces of m x k by k x n; all may be arrays."""
    inner, outer = grains(chip, product)
    rate = 8.0 if product.dtype == "float32" else 4.0
    blocks = -(-k // inner) * product.taps
    columns = -(-n // outer)
    per_worker = -(-m // chip.worker_contexts)
    if product.taps == 1:
        worker = 31 + rate * np.maximum(per_worker - 3, 0)
    else:
        # One call for each partial row of the image; its first three results come for free.
        calls = np.maximum(1, np.ceil(per_worker / max(1, product.row_width)))
        worker = 28 * calls + rate * np.maximum(per_worker - 3 * calls, 0)
    load = 25 + _WEIGHT_LOAD + chip.worker_contexts * worker + (30 if product.taps > 1 else 0)
    if product.dtype == "float8":
        return 46 + groups * (177 + 21 * (blocks - 1) + blocks * columns * (108 + load))
    start = 50 + 6 * (7 + 3 * (blocks * groups - 1))
    return start + groups * (24 + 15 * (blocks - 1) + blocks * columns * load - 6 * columns)


def grains(chip: Chip, product: Product) -> tuple[int, int]:
    """How many inner and column elements the matrix unit takes at once."""
    if product.dtype == "float32":
        return _INNER_GRAIN["float32"], chip.units_float
    units = chip.units_half if product.partials == "float16" else chip.units_single
    return _INNER_GRAIN[product.dtype], units


@lru_cache(maxsize=65536)
def spread(chip: Chip, product: Product, proportion: float = 0.6) -> Spread:
    """The fastest way that keeps its pieces within `proportion` of a tile's memory.

    As the vendor's planner does, the bound is doubled until something fits, up to twice a tile.
    """
    bound = max(proportion, 0.01) * chip.memory_bytes_per_tile
    table = _Table(chip, product)
    while bound <= 2 * chip.memory_bytes_per_tile:
        best = table.best(bound)
        if best is not None:
            return replace(best, within_memory=bound <= proportion * chip.memory_bytes_per_tile)
        bound *= 2
    least = table.smallest()
    return replace(least, within_memory=False)


class _Table:
    """All candidates of one product, as columns."""

    def __init__(self, chip: Chip, product: Product) -> None:
        parts = [_candidates(chip, product, swapped=False)]
        if product.taps == 1 and product.overlap == 0:
            parts.append(_candidates(chip, product, swapped=True))
        names = parts[0].keys()
        self._columns = {n: np.concatenate([part[n] for part in parts]) for n in names}

    def best(self, bound: float) -> Spread | None:
        fitting = np.flatnonzero(self._columns["memory"] <= bound)
        if not len(fitting):
            return None
        return self._row(int(fitting[np.argmin(self._columns["cycles"][fitting])]))

    def smallest(self) -> Spread:
        return self._row(int(np.argmin(self._columns["memory"])))

    def _row(self, index: int) -> Spread:
        row = {name: values[index] for name, values in self._columns.items()}
        cuts = tuple(int(row[name]) for name in ("gs", "ms", "ks", "ns"))
        return Spread(
            float(row["cycles"]),
            float(row["compute"]),
            float(row["exchange"]),
            float(row["reduce"]),
            int(row["steps"]),
            int(row["memory"]),
            int(np.prod(cuts)),
            cuts,  # type: ignore[arg-type]
            int(row["serial"]),
            (int(row["m"]), int(row["k"]), int(row["n"])),
            bool(row["swapped"]),
            within_memory=True,
        )


def _useful_cuts(size: int, most: int) -> Ints:
    """The cuts of `size` that give different pieces, at most `most`."""
    cuts = np.arange(1, max(1, min(size, most)) + 1)
    pieces = -(-size // cuts)
    return cuts[np.concatenate(([True], pieces[1:] != pieces[:-1]))]


def _candidates(chip: Chip, product: Product, *, swapped: bool) -> dict[str, NDArray[Any]]:
    rows, columns = product.rows, product.columns
    if swapped:
        rows, columns = columns, rows
    inner_grain, column_grain = grains(chip, product)
    inner_groups = -(-product.inner // inner_grain)
    column_groups = -(-columns // column_grain)
    gs, ks, ns, serial = (
        axis.ravel()
        for axis in np.meshgrid(
            _useful_cuts(product.groups, chip.tiles),
            _useful_cuts(inner_groups, _MOST_INNER_CUTS),
            _useful_cuts(column_groups, chip.tiles),
            np.array(_SERIAL),
            indexing="ij",
        )
    )
    keep = (gs * ks * ns <= chip.tiles) & (serial <= -(-column_groups // ns))
    gs, ks, ns, serial = gs[keep], ks[keep], ns[keep], serial[keep]
    ms = np.clip(chip.tiles // (gs * ks * ns), 1, rows)
    return _costs(chip, product, swapped, rows, column_groups, (gs, ms, ks, ns, serial))


def _costs(
    chip: Chip,
    product: Product,
    swapped: bool,
    rows: int,
    column_groups: int,
    cuts: tuple[Ints, Ints, Ints, Ints, Ints],
) -> dict[str, NDArray[Any]]:
    gs, ms, ks, ns, serial = cuts
    inner_grain, column_grain = grains(chip, product)
    g = -(-product.groups // gs)
    m = -(-rows // ms)
    inner_groups = -(-product.inner // inner_grain)
    own_groups = -(-column_groups // ns)
    k = -(-inner_groups // ks) * inner_grain
    n = -(-own_groups // serial) * column_grain
    compute = vertex_cycles(chip, product, g, m, k, n)
    width = ELEMENT_BYTES[product.dtype]
    partial_width = 4 if product.partials == "float32" else 2
    input_bytes = m * k * g * width * _halo(product, m) * product.input_scale
    weight_bytes = k * n * g * width * product.taps
    partial_bytes = m * n * g * partial_width
    speed = chip.exchange_bytes_per_cycle
    # Two tiles share a bus: what both need arrives at twice the rate.
    received = input_bytes * (1 - 1 / ns) / (speed * np.where(ns % 2 == 0, 2, 1))
    received = received + weight_bytes * (1 - 1 / ms) / speed
    split = ks > 1
    moved = np.where(split, partial_bytes / speed, 0.0)
    reduce = np.where(split, _reduce_cycles(m * n * g / ks, ks, partial_width), 0.0)
    sliced = np.where(serial > 1, weight_bytes / chip.memcpy_bytes_per_cycle + 60, 0.0)
    steps = serial * np.where(split, 2, 1)
    exchange = serial * (received + moved)
    compute = serial * compute
    reduce = serial * (reduce + sliced)
    memory = input_bytes + weight_bytes + partial_bytes * np.where(split, 2, 1)
    return {
        "gs": gs,
        "ms": ms,
        "ks": ks,
        "ns": ns,
        "serial": serial,
        "m": m,
        "k": k,
        "n": n,
        "compute": compute,
        "exchange": exchange,
        "reduce": reduce,
        "steps": steps,
        "memory": memory,
        "cycles": compute + exchange + reduce + steps * chip.step_cycles,
        "swapped": np.full(len(gs), swapped),
    }


def _halo(product: Product, m: Ints) -> Floats:
    """How much more input than its own a tile needs because windows overlap."""
    if product.overlap == 0:
        return np.ones(len(m))
    side = np.sqrt(np.maximum(m, 1))
    more: Floats = ((side + product.overlap) / side) ** 2
    return more


def _reduce_cycles(outputs: Floats, depth: Ints, width: int) -> Floats:
    """Adding `depth` partial sums for each of `outputs` results on a tile."""
    at_once = 8 if width == 2 else 4
    loops = np.ceil(outputs / at_once / 6)
    extra_stages = (depth >= 16).astype(np.float64) + (depth >= 125)
    cycles: Floats = 6 * loops * (1.5 * depth + 8.5) + 33 + 6 * 20 + extra_stages * 400
    return cycles
