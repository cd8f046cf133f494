"""Random draws and effects are recognised, also inside subgraphs."""

import pytest
import torch
from tests.unit.program.builder import Builder, aten, traced

from pantile.program.effects import has_effect, is_random


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.rand.default, ([3],)),
        (aten.bernoulli.p, (torch.ones(3), 0.5)),
        (aten.native_dropout.default, (torch.ones(3), 0.5, True)),
        (aten.randperm.default, (3,)),
        (aten.multinomial.default, (torch.ones(3), 2)),
    ],
    ids=str,
)
def test_a_draw_is_random_and_no_effect(target, args):
    node = Builder().graph.call_function(target, args)

    assert is_random(node)
    assert not has_effect(node)


@pytest.mark.parametrize(
    "target", [aten.relu_.default, aten.copy_.default, aten._assert_async.default]
)
def test_writing_and_asserting_are_effects(target):
    node = Builder().graph.call_function(target, ())

    assert has_effect(node)
    assert not is_random(node)


@pytest.mark.parametrize(
    "target", [aten.relu.default, aten.t.default, aten.empty.memory_format, min]
)
def test_plain_calls_are_neither(target):
    node = Builder().graph.call_function(target, ())

    assert not has_effect(node)
    assert not is_random(node)


@pytest.mark.parametrize("inner", [False, True], ids=["in the branch", "in a branch of it"])
def test_a_branch_that_draws_makes_the_condition_random(inner):
    def draw(x):
        return x + torch.rand(3)

    def nested(x):
        return torch.cond(x.max() > 1, draw, torch.sin, (x,))

    branch = nested if inner else draw
    program = traced(lambda x: torch.cond(x.sum() > 0, branch, torch.cos, (x,)), torch.ones(3))
    node = next(node for node in program.graph.nodes if node.name == "cond")

    assert is_random(node, program.subgraphs)
    assert not has_effect(node, program.subgraphs)
