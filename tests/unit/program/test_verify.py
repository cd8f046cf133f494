"""The verifier: each rule has a Program that breaks it and one that just keeps it."""

import operator
import re
from dataclasses import replace

import pytest
import torch
from tests.unit.program.builder import Builder, aten, square_program, traced
from torch import fx

from pantile.errors import ProgramError
from pantile.program.program import WRITE, Program
from pantile.program.spec import Guard, InputKind, OutputKind, TensorSpec
from pantile.program.verify import verify


def simple() -> tuple[Builder, fx.Node, fx.Node]:
    build = Builder("gradients")
    weight = build.input("w", (3, 3), InputKind.PARAMETER)
    build.input("x", (3, 3))
    new = build.call(aten.relu.default, weight)
    return build, weight, new


def assert_refused(program: Program, message: str) -> ProgramError:
    with pytest.raises(ProgramError, match=re.escape(message)) as caught:
        verify(program)
    return caught.value


def test_accepts_a_program_with_writes_outputs_guards_constants_and_draws():
    program = square_program([(choice, 1, 2) for choice in range(10)], [5])

    verify(program)


def test_accepts_subgraphs():
    verify(traced(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.ones(3)))


def test_accepts_an_unread_node_without_a_shape_in_a_subgraph_but_not_a_read_one():
    program = traced(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.ones(3))
    graph = program.subgraphs["true_graph_0"].graph
    source, output = next(iter(graph.nodes)), next(reversed(graph.nodes))
    with graph.inserting_before(output):
        node = graph.call_function(aten.neg.default, (source,))

    verify(program)

    output.args = ((node,),)
    assert_refused(program, "has no shape")


def test_accepts_an_operator_that_returns_nothing():
    build, weight, new = simple()
    build.call(aten._assert_async.default, build.call(aten.any.default, weight))
    build.returns("out", new)

    verify(build.finish())


def test_shows_the_lines_round_the_fault_and_marks_it():
    build, _, new = simple()
    for _ in range(5):
        new = build.call(aten.neg.default, new)
    build.call(aten.relu_.default, new)
    for _ in range(5):
        new = build.call(aten.neg.default, new)

    shown = assert_refused(build.finish(), "%relu_ writes in place: aten.relu_.default")

    window = shown.message.splitlines()[1:]
    assert len(window) == 9
    assert window[4].startswith("> 10    %relu_")
    assert all(line.startswith("  ") for line in window[:4] + window[5:])


def test_refuses_an_input_without_a_placeholder():
    program = simple()[0].finish()

    assert_refused(program.replace(inputs=program.inputs[:1]), "2 placeholders for 1 inputs")


def test_refuses_a_placeholder_of_another_shape_than_its_input():
    program = simple()[0].finish()
    wrong = replace(program.inputs[1], spec=TensorSpec((3, 4), torch.float32))

    assert_refused(
        program.replace(inputs=(program.inputs[0], wrong)),
        "%x is float32[3, 3]; input 'x' is float32[3, 4]",
    )


def test_refuses_two_inputs_of_one_kind_and_name():
    program = simple()[0].finish()

    assert_refused(
        program.replace(inputs=(program.inputs[0],) * 2), "several parameter inputs are called 'w'"
    )


def test_refuses_a_placeholder_behind_the_body():
    build, *_ = simple()
    build.input("late", (1,))

    assert_refused(build.finish(), "the placeholder %late stands behind the body")


def test_refuses_a_node_that_reads_what_comes_later():
    build, weight, new = simple()
    other = build.call(aten.neg.default, weight)
    new.args = (other,)

    assert_refused(build.finish(), "%relu reads %neg, which is not above it")


def test_refuses_a_node_of_another_graph():
    build, _, new = simple()
    stranger = Builder().input("stranger", (3, 3))
    new.args = (stranger,)

    assert_refused(build.finish(), "%relu reads %stranger, which is not above it")


def test_refuses_a_call_of_something_that_is_no_operator():
    build, weight, _ = simple()
    node = build.graph.call_function(print, (weight,))
    node.meta["val"] = None

    assert_refused(build.finish(), "which is no operator of torch")


def test_refuses_a_method_call():
    build, weight, _ = simple()
    build.graph.call_method("relu_", (weight,))

    assert_refused(build.finish(), "is a call_method")


def test_refuses_a_node_without_a_shape():
    build, _, new = simple()
    del new.meta["val"]

    assert_refused(build.finish(), "%relu has no shape")


def test_refuses_a_write_that_is_not_onto_a_placeholder():
    build, weight, new = simple()
    build.write(new, weight)

    assert_refused(build.finish(), "writes to something that is not a placeholder")


def test_refuses_a_second_write_to_the_same_input():
    build, weight, new = simple()
    build.write(weight, new)
    build.write(weight, new)

    assert_refused(build.finish(), "%w is written twice")


@pytest.mark.parametrize("change", [torch.Tensor.half, lambda t: t[:1]], ids=["dtype", "shape"])
def test_refuses_a_write_of_another_dtype_or_shape(change):
    build, weight, new = simple()
    build.write(weight, new)
    new.meta["val"] = change(new.meta["val"])

    assert_refused(build.finish(), "and is written with")


def test_refuses_body_nodes_behind_a_write():
    build, weight, new = simple()
    build.write(weight, new)
    build.call(aten.neg.default, new)

    assert_refused(build.finish(), "%neg stands behind the first write")


def test_refuses_to_return_a_write():
    build, weight, new = simple()
    build.returns("out", build.write(weight, new))

    assert_refused(build.finish(), "%copy_ is a write and has no value")


def test_refuses_to_return_an_input_that_was_written():
    build, weight, new = simple()
    build.write(weight, new)
    build.returns("out", weight)

    assert_refused(build.finish(), "%w is read after it was written")


def test_refuses_to_return_a_view_of_an_input_that_was_written():
    build, weight, new = simple()
    rows = build.call(aten.unbind.int, build.call(aten.t.default, weight))
    row = build.call(aten.alias.default, build.call(operator.getitem, rows, 0))
    build.write(weight, new)
    build.returns("out", row)

    assert_refused(build.finish(), "%w is read through %alias after it was written")


def test_refuses_to_swap_two_inputs_through_views():
    build, weight, _ = simple()
    x = next(node for node in build.graph.nodes if node.name == "x")
    view = build.call(aten.view.default, weight, [3, 3])
    build.write(weight, x)
    build.write(x, view)

    assert_refused(build.finish(), "%w is read through %view after it was written")


def test_refuses_a_get_attr_of_nothing():
    build, *_ = simple()
    build.graph.get_attr("nothing")

    assert_refused(build.finish(), "there is no constant or subgraph 'nothing'")


def test_refuses_a_constant_that_nobody_reads():
    program = simple()[0].finish()

    assert_refused(
        program.replace(constants={"c": torch.ones(1)}), "nobody reads the constant or subgraph 'c'"
    )


def test_refuses_a_constant_of_another_shape():
    build, *_ = simple()
    build.constant("c", torch.ones(2))
    program = build.finish()

    assert_refused(
        program.replace(constants={"c": torch.ones(3)}), "the constant 'c' is float32[3]"
    )


def test_refuses_an_output_of_another_spec():
    build, _, new = simple()
    build.returns("out", new)
    program = build.finish()
    wrong = replace(program.outputs[0], spec=TensorSpec((1,), torch.int64))

    assert_refused(
        program.replace(outputs=(wrong,)), "output 'out' is int64[1], but gets float32[3, 3]"
    )


def test_refuses_a_missing_output():
    build, _, new = simple()
    build.returns("out", new)
    program = build.finish()

    assert_refused(program.replace(outputs=()), "1 values for 0 outputs")


def test_refuses_two_gradients_of_one_name():
    build, _, new = simple()
    build.returns("w", new, OutputKind.GRADIENT)
    build.returns("w", new, OutputKind.GRADIENT)

    assert_refused(build.finish(), "several gradient outputs are called 'w'")


def test_refuses_a_guard_on_a_node_that_does_not_exist():
    program = simple()[0].finish()

    assert_refused(program.replace(guards=(Guard("gone", True),)), "a guard asks for %gone")


def test_refuses_a_write_inside_a_subgraph():
    program = traced(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.ones(3))
    graph = program.subgraphs["true_graph_0"].graph
    source = next(iter(graph.nodes))
    with graph.inserting_before(next(reversed(graph.nodes))):
        graph.call_function(WRITE, (source, source)).meta["val"] = source.meta["val"]

    error = assert_refused(program, "writes in place inside the subgraph 'true_graph_0'")

    assert ">" in error.message


def test_refuses_a_graph_without_output():
    program = Program("p", fx.Graph(), (), ())

    assert_refused(program, "the graph has no output")
