"""Products over tiles, against cycles measured on a C600 and against arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from pantile.machine.convolutions import Convolution, convolution_cycles
from pantile.machine.products import Product, spread, vertex_cycles
from pantile.machine.targets import BOW, C600

# Poplar SDK 3.4 on a C600, cycles of the longest tile: see benchmarks/machine/published.json.
MEASURED = [
    ((1, 729, 1152, 3456), "float16", 37277),
    ((16, 729, 729, 72), "float16", 12900),
    ((1, 729, 1152, 4304), "float16", 48248),
    ((1, 729, 1152, 3456), "float8", 22415),
    ((16, 729, 729, 72), "float8", 7377),
    ((1, 729, 1152, 4304), "float8", 26425),
]


def test_compute_cycles_are_within_8_percent_of_the_measured_ones_on_average():
    errors = [
        spread(C600, Product(*sizes, dtype)).compute / cycles - 1
        for sizes, dtype, cycles in MEASURED
    ]

    assert np.mean(np.abs(errors)) <= 0.08
    assert max(map(abs, errors)) <= 0.12


@pytest.mark.parametrize(("dtype", "measured"), [("float16", 8488), ("float8", 5502)])
def test_a_vertex_whose_piece_is_known_is_within_2_percent(dtype, measured):
    product = Product(1, 365, 80, 16, dtype)

    assert vertex_cycles(C600, product, 1, 365, 80, 16) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("sizes", [(1, 7, 16, 16), (3, 129, 65, 33), (128, 128, 64, 128)])
def test_no_spread_is_faster_than_the_matrix_units(sizes):
    way = spread(BOW, Product(*sizes))

    least = np.prod(sizes, dtype=float) / (64 * BOW.tiles)
    assert way.compute >= least
    assert way.tiles <= BOW.tiles
    assert way.cycles == pytest.approx(
        way.compute + way.exchange + way.reduce + way.steps * BOW.step_cycles
    )


def test_less_memory_means_smaller_pieces_and_no_fewer_cycles():
    product = Product(1, 1024, 1024, 4096)
    large, small = spread(BOW, product, 0.6), spread(BOW, product, 0.15)

    assert small.temporary_bytes <= 0.15 * BOW.memory_bytes_per_tile < large.temporary_bytes
    assert small.cycles >= large.cycles


def test_what_cannot_fit_says_so():
    way = spread(BOW, Product(1, 1 << 20, 4096, 4096), 0.01)

    assert not way.within_memory


def test_partial_sums_of_single_precision_take_longer():
    half = spread(BOW, Product(1, 1024, 1024, 1024))
    single = spread(BOW, Product(1, 1024, 1024, 1024, partials="float32"))

    assert single.cycles > 1.3 * half.cycles


def test_a_convolution_of_one_pixel_kernels_is_a_product():
    conv = Convolution(56 * 56 * 8, 56, 64, 256, (1, 1))

    way = convolution_cycles(BOW, conv, 0.6)

    assert conv.flops == 2 * 56 * 56 * 8 * 64 * 256
    assert way.cycles <= spread(BOW, Product(1, 56 * 56 * 8, 64, 256)).cycles * 1.001


def test_groups_share_a_block_of_the_matrix_unit():
    plain = Convolution(28 * 28 * 6, 28, 256, 256, (3, 3), groups=32)
    assert convolution_cycles(BOW, plain, 0.6).compute < 32 * 1e5
    narrow = Convolution(28 * 28 * 6, 28, 128, 128, (3, 3), groups=32)
    dense = Convolution(28 * 28 * 6, 28, 128, 128, (3, 3))
    assert convolution_cycles(BOW, narrow, 0.6).cycles < convolution_cycles(BOW, dense, 0.6).cycles
