"""The fused step computes what gradients and update compute one after the other."""

import operator
from dataclasses import replace

import pytest
import torch
from tests.unit.passes.step_programs import gradients, update
from tests.unit.program.builder import Builder, aten, run, traced

from pantile.errors import ProgramError
from pantile.passes.fuse_update import fuse
from pantile.program.program import Program
from pantile.program.spec import Guard, InputKind, OutputKind
from pantile.program.verify import verify


def names(entries) -> list[str]:
    return [entry.name for entry in entries]


def test_a_fused_step_is_a_step_of_torch():
    program = fuse(gradients(), update())
    model = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.SGD([model], lr=0.01, momentum=0.9)
    weight, momentum, calls = model.detach().clone(), torch.zeros(3, 2), torch.zeros(())

    verify(program)
    for _ in range(4):
        x = torch.randn(4, 3)
        optimizer.zero_grad()
        expected = (x @ model).square().sum()
        expected.backward()
        optimizer.step()
        loss, norm = run(program, weight, calls, x, momentum, 0.01)
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(norm, model.grad.sum())

    torch.testing.assert_close(weight, model.detach())
    assert calls == 4


def test_inputs_are_merged_and_gradients_vanish_from_the_signature():
    program = fuse(gradients(), update())

    assert program.name == "fused"
    assert names(program.inputs) == ["fc.weight", "calls", "x", "fc.weight.momentum", "lr"]
    assert [(e.name, e.kind) for e in program.outputs] == [
        ("loss", OutputKind.USER),
        ("norm", OutputKind.OPTIMIZER),
    ]
    assert not program.inputs_of(InputKind.GRADIENT)


def test_constants_of_the_same_name_are_kept_apart():
    program = fuse(gradients(), update())

    assert {name: float(value) for name, value in program.constants.items()} == {
        "c": pytest.approx(2.0),
        "c_1": pytest.approx(0.9),
    }


def test_the_programs_it_was_given_stay_as_they_were():
    first, second = gradients(), update()
    before = str(first), str(second)

    fuse(first, second)

    assert (str(first), str(second)) == before


def write_in_forward() -> Program:
    """Doubles the weight in place, and returns it and its gradient, which is one."""
    build = Builder("gradients")
    weight = build.input("w", (2,), InputKind.PARAMETER)
    doubled = build.call(aten.mul.Tensor, weight, 2)
    build.write(weight, doubled)
    build.returns("out", doubled)
    build.returns("w", build.call(aten.ones.default, [2]), OutputKind.GRADIENT)
    return build.finish()


def sgd(shape: tuple[int, ...] = (2,)) -> Program:
    """`w = w - g`"""
    build = Builder("update")
    weight = build.input("w", shape, InputKind.PARAMETER)
    grad = build.input("w", shape, InputKind.GRADIENT)
    build.write(weight, build.call(aten.sub.Tensor, weight, grad))
    return build.finish()


def test_the_update_reads_what_the_forward_wrote_and_only_the_last_write_stays():
    program = fuse(write_in_forward(), sgd())
    weight = torch.tensor([1.0, 5.0])

    (out,) = run(program, weight)

    verify(program)
    assert out.tolist() == [2.0, 10.0]
    assert weight.tolist() == [1.0, 9.0]
    assert len(program.writes) == 1


def test_a_weight_that_is_returned_is_the_one_before_the_update():
    build = Builder("gradients")
    weight = build.input("w", (2,), InputKind.PARAMETER)
    build.returns("w", weight)
    build.returns("view", build.call(aten.view.default, weight, [2, 1]))
    build.returns("w", build.call(aten.ones.default, [2]), OutputKind.GRADIENT)
    program = fuse(build.finish(), sgd())
    state = torch.tensor([1.0, 5.0])

    out, view = run(program, state)

    verify(program)
    assert out.tolist() == [1.0, 5.0]
    assert view.tolist() == [[1.0], [5.0]]
    assert state.tolist() == [0.0, 4.0]


def test_an_update_that_swaps_two_states_swaps_them():
    build = Builder("update")
    first = build.input("a", (2,), InputKind.OPTIMIZER)
    second = build.input("b", (2,), InputKind.OPTIMIZER)
    build.write(first, second)
    build.write(second, build.call(aten.clone.default, first))
    program = fuse(Builder("gradients").finish(), build.finish())
    a, b = torch.zeros(2), torch.ones(2)

    run(program, a, b)

    verify(program)
    assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_subgraphs_and_guards_of_both_programs_survive():
    first = traced(
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, torch.sin, (x,)), torch.ones(2)
    )
    second = traced(
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 10, torch.cos, (x,)), torch.ones(2)
    )
    renamed = replace(second.outputs[0], name="second")
    program = fuse(
        first.replace(guards=(Guard("gt", False),)),
        second.replace(guards=(Guard("gt", True),), outputs=(renamed,)),
    )

    verify(program)
    assert len(program.subgraphs) == 4
    assert program.guards == (Guard("gt", False), Guard("gt_1", True))
    x = torch.tensor([1.0, 2.0])
    assert [value.tolist() for value in run(program, x)] == [[2.0, 3.0], [11.0, 12.0]]


def test_a_hyper_parameter_of_both_programs_is_one_input():
    def scaled(name: str) -> Program:
        build = Builder(name)
        number = build.call(operator.mul, build.hyper("lr"), 2.0)
        build.returns(name, build.call(aten.full.default, [1], number))
        return build.finish()

    program = fuse(scaled("gradients"), scaled("update"))

    assert names(program.inputs) == ["lr"]
    assert [value.item() for value in run(program, 3.0)] == [6.0, 6.0]


def test_an_update_of_a_gradient_that_nobody_computes_is_refused():
    with pytest.raises(ProgramError, match="gradient of 'w', which nobody computes"):
        fuse(Builder("gradients").finish(), sgd())


def test_an_update_of_another_shape_is_refused():
    with pytest.raises(ProgramError, match=r"'w' is float32\[2\] in .* and float32\[3\]"):
        fuse(write_in_forward(), sgd((3,)))
