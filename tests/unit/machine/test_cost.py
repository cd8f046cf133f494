"""Costs of single ops: the formulas of the constants, and what they must order."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pantile.machine.calibration import Calibration
from pantile.machine.cost import CostSettings, program_costs
from pantile.machine.targets import BOW
from pantile.planning import record

PLAIN = CostSettings(BOW, calibration=Calibration(1.0, 1.0))


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def cost_of(function, *inputs):
    found = record(Call(function), inputs, training=False)
    return {op.op: cost for op, cost in zip(found.ops, program_costs(found, PLAIN), strict=True)}


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def test_an_elementwise_sum_takes_three_cycles_for_four_halves():
    n = 4 * 1000 * BOW.tiles

    cost = cost_of(torch.add, half(n), half(n))["add"]

    assert cost.compute == 167 + 3 * 1000
    assert cost.exchange == pytest.approx(2 * 4 * 1000 / 4)
    assert cost.sync == BOW.step_cycles


def test_softmax_takes_the_cycles_that_were_measured():
    """7 compute sets on 16 x 729 x 729 halves took 18 300 cycles, the copy before it 126 283."""
    cost = cost_of(lambda x: x.softmax(-1), half(16, 729, 729))["_softmax"]

    assert cost.compute == pytest.approx(18300 + 126283, rel=0.03)


def test_rows_of_odd_length_are_dear_and_the_cost_says_why():
    odd = cost_of(lambda x: x.softmax(-1), half(96, 197, 197))["_softmax"]
    even = cost_of(lambda x: x.softmax(-1), half(96, 200, 200))["_softmax"]

    assert odd.compute > 3 * even.compute
    assert "multiple of 4" in odd.note
    assert even.note == ""


def test_floats_take_longer_than_halves():
    for function in (torch.exp, torch.tanh, lambda x: F.layer_norm(x, (64,))):
        narrow = cost_of(function, half(4096, 64))
        wide = cost_of(function, torch.zeros(4096, 64))
        assert sum(c.cycles for c in wide.values()) > sum(c.cycles for c in narrow.values())


def test_calibration_multiplies_and_is_shown():
    found = record(Call(torch.exp), (half(1 << 20),), training=False)
    doubled = CostSettings(BOW, calibration=Calibration(2.0, 1.0))

    (plain,), (calibrated,) = program_costs(found, PLAIN), program_costs(found, doubled)

    assert calibrated.factor == 2.0
    assert calibrated.cycles == 2 * plain.cycles
    assert calibrated.raw_cycles == plain.raw_cycles


def test_floating_point_operations_of_products_are_counted():
    costs = cost_of(torch.matmul, half(64, 32), half(32, 16))
    assert costs["mm"].flops == 2 * 64 * 32 * 16

    costs = cost_of(F.conv2d, half(2, 8, 16, 16), half(4, 8, 3, 3))
    assert costs["convolution"].flops == 2 * 2 * 14 * 14 * 4 * 8 * 9


def test_a_recurrent_layer_counts_its_products_and_waits_at_every_step():
    length, batch, width, hidden = 20, 8, 16, 32
    layer = nn.LSTM(width, hidden).eval()

    def total(steps):
        found = record(layer, (torch.zeros(steps, batch, width),), training=False)
        costs = program_costs(found, PLAIN)
        return sum(cost.flops for cost in costs), sum(cost.steps for cost in costs)

    flops, steps = total(length)

    assert flops == 2 * length * batch * 4 * hidden * (width + hidden)
    assert steps > 1.8 * total(length // 2)[1]
