"""Dead code goes; outputs, writes, draws, effects and guards stay."""

import operator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.program.builder import Builder, aten, run, square_program, traced

from pantile.passes.drop_dead_code import drop_dead_code
from pantile.program.program import Program
from pantile.program.spec import Guard
from pantile.program.text import equal
from pantile.program.verify import verify

RECIPES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99)), max_size=12
)
RETURNED = st.lists(st.integers(0, 99), min_size=1, max_size=4)


def names(program: Program) -> list[str]:
    return [node.name for node in program.graph.nodes]


def test_drops_a_chain_that_nobody_reads_and_its_constant():
    build = Builder()
    x = build.input("x", (4,))
    build.call(aten.exp.default, build.call(aten.mul.Tensor, x, build.constant("c", torch.ones(4))))
    build.returns("out", build.call(aten.neg.default, x))

    after = drop_dead_code(build.finish())

    assert names(after) == ["x", "neg", "output"]
    assert not after.constants


def test_leaves_the_program_it_was_given_as_it_was():
    build = Builder()
    build.call(aten.exp.default, build.input("x", (4,)))
    before = build.finish()

    drop_dead_code(before)

    assert names(before) == ["x", "exp", "output"]


def test_keeps_an_unread_random_draw():
    build = Builder()
    build.call(aten.rand.default, [4])
    build.returns("b", build.call(aten.ones.default, [4]))
    before = build.finish()

    assert drop_dead_code(before) is before


def test_keeps_an_unread_condition_that_draws_in_a_branch():
    def function(x):
        torch.cond(x.sum() > 0, lambda x: x + torch.rand(3), torch.cos, (x,))
        torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return x + 1

    after = drop_dead_code(traced(function, torch.ones(3)))

    assert [name for name in names(after) if name.startswith("cond")] == ["cond"]
    assert sorted(after.subgraphs) == ["false_graph_0", "true_graph_0"]
    verify(after)


def test_keeps_assertions_and_unread_inputs():
    build = Builder()
    build.input("unread", (1,))
    x = build.input("x", (4,))
    build.call(aten._assert_async.default, build.call(aten.any.default, x))
    before = build.finish()

    assert drop_dead_code(before) is before


def test_keeps_what_decides_a_guard():
    build = Builder()
    half = build.call(operator.mul, build.hyper("lr"), 0.5)
    build.call(operator.mul, half, 3.0)
    build.guards.append(Guard(build.call(operator.gt, half, 0.0).name, True))

    after = drop_dead_code(build.finish())

    assert names(after) == ["lr", "mul", "gt", "output"]


@settings(max_examples=300, deadline=None)
@given(RECIPES, RETURNED)
def test_computes_the_same_and_finds_nothing_the_second_time(recipe, returned):
    before = square_program(recipe, returned)

    after = drop_dead_code(before)

    verify(after)
    assert drop_dead_code(after) is after
    assert equal(before, square_program(recipe, returned))
    results = []
    for program in (before, after):
        torch.manual_seed(0)
        inputs = [torch.rand(3, 3), torch.rand(3, 3), 0.5, torch.rand(3, 3)]
        results.append([*run(program, *inputs), *inputs, torch.rand(3)])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0, equal_nan=True)
