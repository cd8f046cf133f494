"""Constants become inputs."""

import torch
from tests.unit.passes.step_programs import gradients
from tests.unit.program.builder import Builder, aten, run, traced

from pantile.passes.lift_constants import lift_constants
from pantile.program.spec import Input, InputKind, TensorSpec
from pantile.program.text import constants_of, equal, parse_program, print_program
from pantile.program.verify import verify


def test_constants_are_inputs_of_their_name_and_are_returned_in_order():
    build = Builder()
    x = build.input("x", (2,))
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3, 4])
    first = build.call(aten.mul.Tensor, x, build.constant("layer.table", one))
    build.returns("out", build.call(aten.add.Tensor, first, build.constant("shift", two)))

    program, tensors = lift_constants(build.finish())

    verify(program)
    assert not program.constants
    assert program.inputs_of(InputKind.CONSTANT) == [
        Input("layer.table", InputKind.CONSTANT, TensorSpec((2,), torch.float32)),
        Input("shift", InputKind.CONSTANT, TensorSpec((2,), torch.int64)),
    ]
    assert [t is wanted for t, wanted in zip(tensors, (one, two), strict=True)] == [True, True]
    assert run(program, torch.tensor([10.0, 10.0]), *tensors)[0].tolist() == [13.0, 24.0]


def test_a_constant_read_twice_is_one_input():
    build = Builder()
    table = torch.ones(2)
    left, right = build.constant("c", table), build.constant("c", table)
    build.returns("out", build.call(aten.add.Tensor, left, right))

    program, tensors = lift_constants(build.finish())

    verify(program)
    assert len(program.inputs) == len(tensors) == 1


def test_the_strides_of_a_constant_are_kept():
    build = Builder()
    build.returns("out", build.call(aten.neg.default, build.constant("c", torch.rand(2, 3).t())))

    program, _ = lift_constants(build.finish())

    assert program.placeholders[0].meta["val"].stride() == (1, 3)


def test_a_step_computes_the_same_and_its_text_can_be_read_back():
    before = gradients()

    after, tensors = lift_constants(before)

    inputs = [torch.rand(3, 2), torch.zeros(()), torch.rand(4, 3)]
    wanted = run(before, *(tensor.clone() for tensor in inputs))
    assert all(map(torch.equal, run(after, *inputs, *tensors), wanted))
    assert equal(parse_program(print_program(after), constants_of(after)), after)


def test_without_constants_nothing_changes():
    program, _ = lift_constants(gradients())

    assert lift_constants(program) == (program, ())


def test_subgraphs_stay():
    def function(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + torch.tensor([1.0, 2.0, 3.0])

    before = traced(function, torch.ones(3))

    after, tensors = lift_constants(before)

    assert after.subgraphs.keys() == before.subgraphs.keys()
    assert not after.constants
    wanted = torch.ones(3).sin() + torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(run(after, torch.ones(3), *tensors)[0], wanted)
