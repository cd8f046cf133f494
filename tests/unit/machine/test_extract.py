"""Records of captured programs."""

from __future__ import annotations

import torch
from tests.unit.machine.records import stack_record
from torch import nn

import poptorch
from pantile.machine.extract import records_of


def test_ops_carry_shapes_phase_and_module():
    found = stack_record(layers=2, width=32, batch=8)

    products = [op for op in found.ops if op.op == "addmm"]
    assert [op.module for op in products] == [
        f"layers.{i}.{name}" for i in (0, 1) for name in ("up", "down")
    ]
    assert {op.phase for op in products} == {"forward"}
    up = products[0]
    assert [t.shape for t in found.operands(up)] == [(64,), (8, 32), (32, 64)]
    backward = [op for op in found.ops if op.op == "mm"]
    assert {op.phase for op in backward} == {"backward"}
    assert {op.module for op in backward} == {op.module for op in products}


def test_a_view_shows_the_memory_of_another_tensor():
    found = stack_record(layers=1)

    up = next(op for op in found.ops if op.op == "addmm")
    weight = found.operands(up)[2]
    root = found.tensors[weight.of]
    assert (root.kind, root.name, root.shape) == ("parameter", "layers.0.up.weight", (64, 32))
    assert not any(op.op in ("t", "view") for op in found.ops)


def test_stages_and_lines_come_from_the_blocks_of_the_script():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = self.first(x)
            with poptorch.Block("b", ipu_id=1):
                return poptorch.identity_loss(self.second(x), reduction="mean")

    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    step = poptorch.trainingModel(Two(), options)
    step.compile(torch.zeros(6, 4))

    found = records_of(step._compiled[0].program)

    stage_of = {op.module: op.stage for op in found.ops if op.op in ("addmm", "mm") and op.module}
    assert stage_of == {"first": 0, "second": 1}
    assert found.stages == 2
    lines = {op.source.rpartition(":")[0] for op in found.ops if op.source}
    assert lines == {__file__}


def test_a_64_bit_number_takes_32_bits_on_an_ipu():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, ids):
            return self.table(ids).sum()

    from pantile.planning import record

    found = record(Lookup(), (torch.zeros(6, dtype=torch.int64),))

    (argument,) = found.of_kind("argument")
    assert (argument.dtype, argument.bytes) == ("int64", 6 * 4)
