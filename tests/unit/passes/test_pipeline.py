"""The pass loop verifies after each pass and names the culprit."""

import pytest
from tests.unit.program.builder import Builder, aten

from pantile.errors import ProgramError
from pantile.passes.pipeline import PASSES, run_passes
from pantile.program.program import Program
from pantile.program.text import equal


def small() -> Program:
    build = Builder()
    x = build.input("x", (2,))
    build.call(aten.exp.default, x)
    build.returns("out", build.call(aten.neg.default, x))
    return build.finish()


def test_runs_every_pass_in_order():
    seen = []

    def first(program: Program) -> Program:
        seen.append("first")
        return program

    def second(program: Program) -> Program:
        seen.append("second")
        return program

    program = small()

    assert run_passes(program, passes=(first, second)) is program
    assert seen == ["first", "second"]


def test_the_default_passes_drop_dead_code():
    after = run_passes(small())

    assert [node.name for node in after.graph.nodes] == ["x", "neg", "output"]
    assert equal(run_passes(after, passes=PASSES), after)


def test_names_the_pass_that_broke_the_program():
    def lose_the_outputs(program: Program) -> Program:
        return program.replace(outputs=())

    with pytest.raises(ProgramError, match=r"after the pass 'lose_the_outputs': .*1 values for 0"):
        run_passes(small(), passes=(lose_the_outputs,))


def test_says_so_when_the_program_was_broken_before():
    with pytest.raises(ProgramError, match="before the first pass: "):
        run_passes(small().replace(outputs=()))
