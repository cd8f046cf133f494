"""What is left of a Program whose code is loaded."""

from __future__ import annotations

import torch
from tests.unit.program.builder import Builder

from pantile.program.spec import InputKind

aten = torch.ops.aten


def test_an_outline_has_the_same_outside_and_computes_nothing() -> None:
    build = Builder("fused")
    weight = build.input("weight", (3,), InputKind.PARAMETER)
    x = build.input("x", (2, 3))
    total = build.call(aten.mul.Tensor, x, weight)
    build.write(weight, build.call(aten.relu.default, weight))
    build.returns("out", total)
    program = build.finish()

    outline = program.outline()

    assert (outline.inputs, outline.outputs) == (program.inputs, program.outputs)
    assert [entry for entry, _ in outline.writes] == [entry for entry, _ in program.writes]
    assert [n.meta["val"].stride() for n in outline.placeholders] == [(1,), (3, 1)]
    assert len(outline.graph.nodes) == len(program.inputs) + len(program.writes) + 1
