"""An update that draws random numbers makes the seeds of its next run."""

from __future__ import annotations

import torch
from tests.unit.program.builder import Builder, aten, run

from pantile.passes.advance_seeds import MASK, advance_seeds
from pantile.passes.counter_random import counter_random
from pantile.program.spec import InputKind
from pantile.program.verify import verify


def test_each_run_draws_other_numbers():
    build = Builder("update")
    w = build.input("w", (8,), InputKind.PARAMETER)
    drawn = build.call(aten.rand.default, [8], dtype=torch.float32)
    build.write(w, build.call(aten.add.Tensor, w, drawn))
    program = advance_seeds(counter_random(build.finish()))
    verify(program)
    seeds, seen, drawn_before = torch.tensor([MASK]), set(), set()

    for _ in range(50):
        weights = torch.zeros(8)
        run(program, weights, seeds)
        seen.add(int(seeds))
        drawn_before.add(tuple(weights.tolist()))
        assert 0 <= int(seeds) <= MASK

    assert len(seen) == len(drawn_before) == 50


def test_a_program_without_seeds_is_left_alone():
    build = Builder("update")
    build.returns("out", build.call(aten.neg.default, build.input("x", (2,))))
    program = build.finish()

    assert advance_seeds(program) is program
