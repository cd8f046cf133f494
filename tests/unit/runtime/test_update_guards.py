"""Guards of update programs, grouped and remembered."""

import operator

import torch
from torch import fx

from pantile.program.program import Program
from pantile.program.spec import Guard, Input, InputKind, ScalarSpec, TensorSpec
from pantile.runtime.update_guards import UpdateGuards

ITEM = torch.ops.aten._local_scalar_dense.default


def counting_program(counters):
    """One guard per counter: `counter * factor > 5`, not taken."""
    graph = fx.Graph()
    steps = [graph.placeholder(f"step{i}") for i in range(counters)]
    factor = graph.placeholder("factor")
    guards = []
    for step in steps:
        number = graph.call_function(ITEM, (step,))
        scaled = graph.call_function(operator.mul, (number, factor))
        answer = graph.call_function(operator.gt, (scaled, 5.0))
        guards.append(Guard(answer.name, taken=False))
    graph.output(())
    spec = TensorSpec((), torch.float32)
    inputs = [Input(s.name, InputKind.OPTIMIZER, spec) for s in steps]
    return Program(
        name="update",
        graph=graph,
        inputs=(*inputs, Input("factor", InputKind.HYPER, ScalarSpec())),
        outputs=(),
        guards=tuple(guards),
    )


def test_guards_hold_while_every_branch_goes_the_same_way():
    guards = UpdateGuards(counting_program(3))

    assert guards.hold([*torch.tensor([1.0, 2.0, 2.5]), 2.0])
    assert not guards.hold([*torch.tensor([1.0, 2.0, 2.6]), 2.0])
    assert not guards.hold([*torch.tensor([1.0, 2.0, 2.5]), 3.0])


def test_an_answer_is_not_reused_for_other_numbers():
    guards = UpdateGuards(counting_program(1))
    counter = torch.tensor(1.0)
    assert guards.hold([counter, 2.0])

    counter += 2

    assert not guards.hold([counter, 2.0])


def test_equal_operands_are_computed_once():
    program = counting_program(4)
    computed = []

    def counted(a, b):
        computed.append((a, b))
        return a > b

    for node in program.graph.nodes:
        if node.target is operator.gt:
            node.target = counted

    UpdateGuards(program).hold([*torch.ones(4), 2.0])

    assert computed == [(2.0, 5.0)]
