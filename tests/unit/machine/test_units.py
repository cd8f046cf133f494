"""Units: what a program is cut between."""

from __future__ import annotations

import pytest
import torch
from tests.unit.machine.records import Stack, stack_record

from pantile.machine.cost import CostSettings, program_costs
from pantile.machine.records import OpRecord, ProgramRecord, TensorRecord
from pantile.machine.targets import BOW
from pantile.machine.units import liveness, units_of

SETTINGS = CostSettings(BOW)


def test_no_cycle_is_lost_between_ops_and_units():
    found = stack_record()

    units = units_of(found, SETTINGS)

    total = sum(cost.cycles for cost in program_costs(found, SETTINGS))
    assert sum(u.forward + u.backward for u in units) == pytest.approx(total)


def test_equal_layers_are_units_of_equal_work():
    units = units_of(stack_record(layers=4), SETTINGS, finest=0.3)

    assert [unit.name for unit in units] == [f"layers.{i}" for i in range(4)]
    assert units[1].forward == pytest.approx(units[2].forward)
    assert units[1].backward == pytest.approx(units[2].backward)


def test_every_parameter_belongs_to_one_unit_with_its_real_bytes():
    model = Stack(layers=3, width=16)

    units = units_of(stack_record(layers=3, width=16), SETTINGS)

    held = {p.name: p.bytes for unit in units for p in unit.parameters}
    assert held == {name: p.numel() * 4 for name, p in model.named_parameters()}


def test_the_border_behind_a_layer_is_its_output():
    units = units_of(stack_record(layers=3, width=32, batch=8), SETTINGS, finest=0.35)

    assert [unit.border_bytes for unit in units[:-1]] == [8 * 32 * 4] * (len(units) - 1)
    assert units[-1].border_bytes == 0


def test_liveness_counts_a_value_from_its_maker_to_its_last_reader():
    """a = f(x); b = f(a); c = f(a, b): 100 bytes each, so 1, 2, 3 of them are alive."""
    tensors = tuple(
        TensorRecord(i, name, (25,), "float32", "argument" if i == 0 else "value", i)
        for i, name in enumerate(("x", "a", "b", "c"))
    )
    ops = (
        OpRecord(0, "exp", (0,), (1,)),
        OpRecord(1, "exp", (1,), (2,)),
        OpRecord(2, "add", (1, 2), (3,)),
    )

    found = liveness(ProgramRecord("p", tensors, ops), ops)

    assert found == [(0, 100), (1, 200), (2, 300)]


def test_a_dropout_mask_is_drawn_again_and_not_kept():
    class Dropped(torch.nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p, self.layer = p, torch.nn.Linear(64, 64)

        def forward(self, x):
            return torch.nn.functional.dropout(self.layer(x), self.p).pow(2).sum()

    from pantile.planning import record

    with_mask = units_of(record(Dropped(0.5), (torch.zeros(8, 64),)), SETTINGS)
    without = units_of(record(Dropped(0.0), (torch.zeros(8, 64),)), SETTINGS)

    assert sum(u.saved_bytes for u in with_mask) == sum(u.saved_bytes for u in without)
