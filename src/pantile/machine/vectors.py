"""Cycles of everything that is not a matrix product: one tile's share, on its vector unit.

    cycles = overhead of the vertex + vectors of the busiest tile * cycles for each vector

A vector is 8 bytes: 4 halves or 2 floats. The constants are facts of poplibs' estimators, softmax
and the copies of unaligned rows were measured on a C600 (see NOTICE).
"""

from __future__ import annotations

from dataclasses import dataclass

from pantile.machine.targets import Chip


@dataclass(frozen=True)
class Pace:
    """Cycles for a vector of halves and one of floats, overhead of a vertex, steps it takes."""

    half: float
    single: float
    overhead: float = 167
    steps: int = 1


_UNARY = 6 * 20 + 20
PACES: dict[str, Pace] = {
    "add": Pace(3, 3),
    "sub": Pace(3, 3),
    "rsub": Pace(3, 3),
    "mul": Pace(3, 3),
    "div": Pace(15 + 5, 6 + 5),
    "scalar": Pace(2, 2, 6 * 20 + 11),
    "exp": Pace(4, 6, 6 * 33 + 20),
    "log": Pace(4, 12, 6 * 17 + 20),
    "tanh": Pace(4, 12, _UNARY),
    "tanh_backward": Pace(6, 8, _UNARY),
    "sigmoid": Pace(6, 12, _UNARY),
    "sigmoid_backward": Pace(6, 8, _UNARY),
    "relu": Pace(3, 3, _UNARY),
    "threshold_backward": Pace(4, 4, _UNARY),
    "hardtanh": Pace(4, 4, _UNARY),
    "hardtanh_backward": Pace(6, 6, _UNARY),
    "silu": Pace(9, 15, _UNARY, 2),
    "silu_backward": Pace(15, 24, _UNARY, 3),
    "hardswish": Pace(12, 12, _UNARY, 3),
    "hardswish_backward": Pace(16, 16, _UNARY, 4),
    "sqrt": Pace(23, 10, _UNARY),
    "rsqrt": Pace(19, 8, _UNARY),
    "reciprocal": Pace(15, 6, _UNARY),
    "gelu": Pace(5, 10, 6 * 20 + 9),
    "gelu_backward": Pace(8, 16, 6 * 20 + 9),
    "erf": Pace(64, 44, _UNARY),
    "sin": Pace(100, 4600, _UNARY),
    "cos": Pace(100, 4600, _UNARY),
    "cast": Pace(2, 2, 6 * 37 + 12),
    "where": Pace(20, 10, _UNARY),
    "masked_fill": Pace(20, 10, _UNARY),
    "integer": Pace(28, 14, _UNARY),
    "dropout": Pace(2, 2, 6 * 24 + 6),
    "dropout_backward": Pace(3, 3),
    "normal": Pace(4, 4, 6 * 24 + 4),
    "uniform": Pace(2, 2, 6 * 24),
    "fill": Pace(1, 1, 60),
    "reduce": Pace(1, 1, 6 * 20 + 33, 2),
    "norm": Pace(13, 13, 6 * 167, 6),
    "norm_backward": Pace(20, 20, 8 * 167, 8),
    "norm_inference": Pace(6, 6, 2 * 167, 2),
    "softmax": Pace(12.7, 16, 0, 7),
    "softmax_backward": Pace(12, 14, 5 * 167, 5),
    "accumulate": Pace(3, 3, 57 + 6 * 22),
    "other": Pace(8, 12),
}

COPY_OVERHEAD = 587
_UNALIGNED = 126283 / 11.7e3 / 5.1484
"""A relayout in units of 2 bytes was measured: so much slower than the regression for copies."""
COPY_CYCLES_PER_BYTE = {
    8: 0.4404,
    4: 3.125 * _UNALIGNED,
    2: 5.1484 * _UNALIGNED,
    1: 2 * 5.1484 * _UNALIGNED,
}


def vector_cycles(chip: Chip, pace: Pace, elements: int, width: int) -> float:
    """One tile's share of an elementwise pass; steps are counted by the caller."""
    lanes = max(1, chip.vector_bytes // width)
    share = -(-elements // chip.tiles)
    vectors = -(-share // lanes)
    return pace.overhead + vectors * (pace.half if width <= 2 else pace.single)


def atom_bytes(row_bytes: int) -> int:
    """The largest unit of 8, 4, 2 or 1 bytes that rows of this length can be copied in."""
    return next(unit for unit in (8, 4, 2, 1) if row_bytes % unit == 0)


def copy_cycles(chip: Chip, nbytes: int, atom: int) -> float:
    """Bringing a tensor into another order, once it has arrived."""
    share = nbytes / chip.tiles
    return COPY_OVERHEAD + COPY_CYCLES_PER_BYTE[atom] * share


def exchange_cycles(chip: Chip, nbytes: float) -> float:
    """Receiving an even share of so many bytes on every tile."""
    return nbytes / chip.tiles / chip.exchange_bytes_per_cycle


def gather_cycles(chip: Chip, rows: int, slice_elements: int, width: int) -> float:
    """Looking up rows of a table that is spread over the tiles."""
    pieces = max(1, min(slice_elements * width // chip.vector_bytes, 64))
    holders = max(1, chip.tiles // pieces)
    vectors = -(-slice_elements // pieces) * width / 4
    in_range = -(-rows // holders)
    return 6 * (30 + in_range * (19 + 2 * vectors) + (rows - in_range) / 6 * 8)


def scatter_cycles(chip: Chip, rows: int, slice_elements: int, width: int) -> float:
    """Adding rows to a table that is spread over the tiles."""
    pieces = max(1, min(slice_elements * width // chip.vector_bytes, 64))
    holders = max(1, chip.tiles // pieces)
    vectors = -(-slice_elements // pieces) * width / 4
    in_range = -(-rows // holders)
    return 6 * (33 + in_range * (12 + 3.5 * vectors) + (rows - in_range) / 6 * 5)
