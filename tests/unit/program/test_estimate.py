"""What operators cost, against formulas."""

from __future__ import annotations

import torch
from tests.unit.program.builder import Builder, aten

from pantile.program.estimate import Cost, cost_of, node_cost


def test_a_product_costs_two_operations_for_each_pair_of_numbers():
    build = Builder("inference")
    x, w = build.input("x", (4, 8)), build.input("w", (8, 16))

    assert node_cost(build.call(aten.mm.default, x, w)) == Cost(
        flops=2 * 4 * 8 * 16, bytes=4 * (4 * 8 + 8 * 16 + 4 * 16)
    )


def test_a_view_costs_nothing():
    build = Builder("inference")
    x = build.input("x", (4, 8))

    assert node_cost(build.call(aten.t.default, x)) == Cost()


def test_a_sum_costs_as_many_operations_as_it_reads_numbers():
    build = Builder("inference")
    x = build.input("x", (4, 8))
    half = build.call(aten.to.dtype, x, torch.float16)
    total = build.call(aten.sum.default, half)

    assert node_cost(total) == Cost(flops=32, bytes=2 * 32 + 2)
    assert cost_of([total, total]) == Cost(flops=64, bytes=2 * (2 * 32 + 2))
