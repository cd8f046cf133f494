"""Records name the module of each op as Python writes it."""

from __future__ import annotations

import torch
from torch import nn

import poptorch
from pantile.planning import record


class Shared(nn.Module):
    """One layer called twice, and an op of its own in between."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.exp(self.layer(x))).sum()


def modules_of(model, training=True):
    found = record(model, (torch.zeros(2, 4),), training=training)
    return [(op.op, op.phase, op.module) for op in found.ops if op.op in ("addmm", "exp", "mm")]


def test_an_op_after_a_module_returned_belongs_to_the_outer_one():
    forward = [row for row in modules_of(Shared()) if row[1] == "forward"]

    assert forward == [
        ("addmm", "forward", "layer"),
        ("exp", "forward", ""),
        ("addmm", "forward", "layer"),
    ]


def test_backward_ops_belong_to_the_module_of_their_forward():
    backward = {name for op, phase, name in modules_of(Shared()) if phase == "backward"}

    assert backward == {"layer"}


def test_blocks_that_outlast_a_module_keep_their_stage_and_its_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            poptorch.BeginBlock(self.layers[1], "b", ipu_id=1)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    found = record(Net(), (torch.zeros(2, 4),), training=False)

    products = [(op.module, op.stage) for op in found.ops if op.op == "addmm"]
    assert products == [("layers.0", 0), ("layers.1", 1), ("layers.2", 1)]
