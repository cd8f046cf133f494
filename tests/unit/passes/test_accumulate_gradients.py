"""Accumulated gradients are the sum over micro-batches."""

import torch
from tests.unit.passes.step_programs import gradients
from tests.unit.program.builder import Builder, aten, run
from torch import fx

from pantile.passes.accumulate_gradients import accumulate_gradients
from pantile.program.program import tag_of
from pantile.program.spec import InputKind, OutputKind
from pantile.program.verify import verify


def test_adds_each_micro_batch_to_the_accumulator():
    program = accumulate_gradients(gradients())
    weight = torch.randn(3, 2, requires_grad=True)
    batches = [torch.randn(4, 3) for _ in range(3)]
    accumulator, calls = torch.zeros(3, 2), torch.zeros(())

    losses = [run(program, weight.detach(), calls, x, accumulator)[0] for x in batches]

    expected = [(x @ weight).square().sum() for x in batches]
    sum(expected).backward()
    torch.testing.assert_close(losses, [loss.detach() for loss in expected])
    torch.testing.assert_close(accumulator, weight.grad)
    assert calls == 3


def test_gradients_become_inputs_of_the_same_name_and_spec():
    before = gradients()

    after = accumulate_gradients(before)

    verify(after)
    (accumulator,) = after.inputs_of(InputKind.GRADIENT)
    (gradient,) = before.outputs_of(OutputKind.GRADIENT)
    assert (accumulator.name, accumulator.spec) == (gradient.name, gradient.spec)
    assert [entry.name for entry in after.outputs] == ["loss"]
    assert [entry.name for entry, _ in after.writes] == ["calls", "fc.weight"]
    assert tag_of(after.writes[1][1]).stage == 1
    assert len(before.inputs) == 3


def test_a_program_without_gradients_stays_as_it_is():
    build = Builder()
    build.returns("out", build.call(aten.neg.default, build.input("x", (2,))))
    program = build.finish()

    assert accumulate_gradients(program) is program


def test_a_program_without_inputs_gets_its_first():
    build = Builder("gradients")
    build.returns("w", build.call(aten.ones.default, [2]), OutputKind.GRADIENT)

    program = accumulate_gradients(build.finish())

    verify(program)
    accumulator = torch.tensor([1.0, 2.0])
    assert run(program, accumulator) == []
    assert accumulator.tolist() == [2.0, 3.0]


def test_accumulators_are_arguments_of_python_whatever_the_parameters_are_called():
    build = Builder("gradients")
    for name in ("conv2d_0/w_0", "a.b", "a_b"):
        build.returns(name, build.call(aten.ones.default, [2]), OutputKind.GRADIENT)

    program = accumulate_gradients(build.finish())

    module = fx.GraphModule(dict(program.constants), program.graph)
    accumulators = [torch.zeros(2) for _ in range(3)]
    module(*accumulators)
    assert [accumulator.tolist() for accumulator in accumulators] == [[1.0, 1.0]] * 3
