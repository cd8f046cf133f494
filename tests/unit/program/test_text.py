"""The text form: what is printed parses back to the same Program."""

import contextlib
import math
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.program.builder import Builder, aten, run, square_program, traced

from pantile.errors import ProgramError
from pantile.program.program import Program
from pantile.program.spec import Guard, InputKind, NodeTag, OutputKind
from pantile.program.text import constants_of, equal, parse_program, print_program

RECIPES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99)), max_size=12
)
RETURNED = st.lists(st.integers(0, 99), min_size=1, max_size=4)


def parsed(program: Program) -> Program:
    return parse_program(print_program(program), constants_of(program))


def linear() -> Program:
    build = Builder("gradients")
    weight = build.input("fc.weight", (4, 8), InputKind.PARAMETER)
    x = build.input("x", (2, 8))
    rate = build.hyper("lr")
    turned = build.call(aten.t.default, weight)
    out = build.call(aten.mm.default, x, turned, tag=NodeTag("forward", 1, "fc", "my model.py:12"))
    scaled = build.call(operator.mul, rate, 0.9)
    new = build.call(aten.mul.Tensor, weight, scaled)
    build.guards.append(Guard(build.call(operator.gt, scaled, 0.0).name, False))
    build.write(weight, new)
    build.returns("out[0]", out)
    build.returns("fc.weight", new, OutputKind.GRADIENT)
    return build.finish()


def test_prints_one_node_a_line_with_shapes_tags_writes_and_guards():
    text = print_program(linear())

    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "program gradients",
        'param %fc_weight "fc.weight" float32[4, 8]',
        'arg %x "x" float32[2, 8]',
        'hyper %lr "lr" scalar',
        "%t = aten.t.default(%fc_weight) -> float32[8, 4]{1, 8}",
        '%mm = aten.mm.default(%x, %t) -> float32[2, 4] # forward stage=1 fc "my model.py:12"',
        "%mul = operator.mul(%lr, 0.9) -> scalar",
        "%mul_1 = aten.mul.Tensor(%fc_weight, %mul) -> float32[4, 8]",
        "%gt = operator.gt(%mul, 0.0) -> scalar",
        "write %fc_weight <- %mul_1 as %copy_",
        'return %mm "out[0]" user float32[2, 4]',
        'return %mul_1 "fc.weight" gradient float32[4, 8]',
        "guard %gt refused",
    ]


def test_str_of_a_program_is_its_text_form():
    program = linear()

    assert str(program) == print_program(program)


def test_leaves_tags_out_when_asked():
    assert "model.py" not in print_program(linear(), tags=False)


def test_a_parsed_program_has_the_same_nodes_signature_tags_and_values():
    program = linear()

    again = parsed(program)

    assert equal(again, program)
    assert again.inputs == program.inputs
    assert again.outputs == program.outputs
    assert again.guards == program.guards
    for left, right in zip(again.graph.nodes, program.graph.nodes, strict=True):
        assert (left.op, left.name, left.target) == (right.op, right.name, right.target)
        assert str(left.args) == str(right.args)
        assert left.meta.get("tag") == right.meta.get("tag")
    turned = next(node for node in again.graph.nodes if node.name == "t")
    assert turned.meta["val"].stride() == (1, 8)


ARGUMENTS = [
    None,
    True,
    3,
    -3,
    0.1,
    -0.0,
    1e-300,
    1e16,
    math.inf,
    -math.inf,
    complex(1, -2),
    complex(-0.0, math.inf),
    'a "quoted" # string\n\u00e9',
    (),
    (1,),
    (1, 2),
    [],
    [1, [2, (3,)]],
    {"k": 1, "l": [2]},
    slice(1, None, 2),
    ...,
    torch.float16,
    torch.bool,
    torch.device("cpu"),
    torch.device("meta"),
    torch.strided,
    torch.channels_last,
    aten.add.Tensor,
    operator.mul,
]


@pytest.mark.parametrize("argument", ARGUMENTS, ids=str)
def test_an_argument_of_any_kind_survives(argument):
    build = Builder()
    x = build.input("x", (2,))
    args, kwargs = (x, argument), {"dtype": argument}
    node = build.graph.create_node("call_function", aten.sum.default, args, kwargs, name="sum_1")
    node.meta["val"] = x.meta["val"]
    program = build.finish()

    again = next(n for n in parsed(program).graph.nodes if n.name == "sum_1")

    assert again.args[1] == argument
    assert again.kwargs["dtype"] == argument
    assert type(again.args[1]) is type(node.args[1])
    assert repr(again.args[1]) == repr(node.args[1])


def test_a_nan_argument_survives():
    build = Builder()
    build.call(aten.mul.Tensor, build.input("x", (2,)), math.nan)
    program = build.finish()

    again = next(n for n in parsed(program).graph.nodes if n.op == "call_function")

    assert math.isnan(again.args[1])
    assert equal(parsed(program), program)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, -0.0, math.inf]),
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.tensor([0.1, 1e-8], dtype=torch.bfloat16),
        torch.tensor([0.1, 1e30], dtype=torch.float64),
        torch.tensor([math.nan]),
        torch.tensor([1 + 2j]),
        torch.empty(0, 3),
        torch.arange(100.0),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(200).reshape(10, 20).t(),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_a_constant_survives_bit_for_bit(tensor):
    build = Builder()
    build.returns("c", build.call(aten.clone.default, build.constant("c", tensor)))
    program = build.finish()

    again = parsed(program)

    found = again.constants["c"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert found.stride() == tensor.stride()
    assert torch.equal(found.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))
    assert equal(again, program)


def test_programs_that_differ_in_one_constant_are_not_equal():
    def build(value: float) -> Program:
        builder = Builder()
        builder.returns(
            "c", builder.call(aten.neg.default, builder.constant("c", torch.ones(99) * value))
        )
        return builder.finish()

    assert equal(build(1.0), build(1.0))
    assert not equal(build(1.0), build(2.0))


def test_programs_that_differ_in_a_list_for_a_tuple_are_not_equal():
    def build(size) -> Program:
        builder = Builder()
        builder.call(aten.view.default, builder.input("x", (4,)), size)
        return builder.finish()

    assert not equal(build([2, 2]), build((2, 2)))


def test_subgraphs_are_nested_blocks_that_parse_back_and_run():
    def nested(x):
        def inner(x):
            return torch.cond(x.max() > 1, torch.sin, torch.cos, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x * 2, (x,)) + torch.tensor([5.0, 6.0, 7.0])

    program = traced(nested, torch.ones(3))

    again = parsed(program)

    assert equal(again, program)
    assert print_program(again).count("graph   ") == 4
    for x in (torch.tensor([0.5, 0.1, 0.1]), torch.tensor([3.0, 0.1, 0.1]), -torch.ones(3)):
        assert torch.equal(run(again, x)[0], nested(x))


@settings(max_examples=300, deadline=None)
@given(RECIPES, RETURNED)
def test_any_program_survives_printing_and_parsing(recipe, returned):
    program = square_program(recipe, returned)

    again = parsed(program)

    assert equal(again, program)
    assert print_program(again) == print_program(program)
    assert [n.name for n in again.graph.nodes] == [n.name for n in program.graph.nodes]


FAULTS = [
    ("%y = aten.no_such_op.default(%x) -> float32[2]", "no operator 'aten.no_such_op.default'"),
    ("%y = os.system(%x) -> float32[2]", "no operator 'os.system'"),
    ("%y = aten.__class__.__init__(%x)", "no operator"),
    ("%y = load_library.x.y(%x)", "no operator"),
    ("%y = builtins.eval(%x)", "no operator"),
    ("%y = eval(%x)", "no operator"),
    ("%y = operator.attrgetter(%x)", "no operator"),
    ("%y = aten.neg.default(%z) -> float32[2]", "%z is used before it is defined"),
    ("%y = aten.neg.default(%x -> float32[2]", "expected ')'"),
    ("%y = aten.neg.default(%x) -> float99[2]", "float99 is not a dtype"),
    ("%y = aten.neg.default(%x) -> float32[-2]", "cannot have the shape [-2]"),
    ("%y = aten.neg.default(%x) -> float32[99999999999999999999]", "no torch.float32 tensor"),
    ("%y = aten.neg.default(%x) -> float32[2] float32[2]", "at the end of the line"),
    ("%y = aten.neg.default(%x, a=1, 2)", "a positional argument follows a named one"),
    ("%y = aten.neg.default(%x, a=1, a=2)", "'a' is given twice"),
    ("%y = aten.neg.default((%x))", "needs a comma"),
    ("%y = aten.neg.default(" + "[" * 2000, "nested more than"),
    ("%y = aten.neg.default(" + "9" * 5000 + ")", "cannot read the number"),
    ("%y = aten.neg.default(<object>)", "cannot read"),
    ('%y = aten.neg.default("\\x")', "is not a string"),
    ("%y = aten.neg.default(%x) # what is this", "cannot read the comment"),
    ("%x = aten.neg.default(%x)", "%x is defined twice"),
    ("%max = aten.neg.default(%x)", "%max cannot be the name"),
    ("nonsense %x", "no line begins with 'nonsense'"),
    ("write %x <- %q as %copy_", "%q is used before"),
    ("write 3 <- %x as %copy_", "only an input can be written"),
    ('const "c" float32[2] [1.0]', "expected a list of 2 numbers"),
    ('const "c" int8[1] ["a"]', "do not fit"),
    (f'const "c" int8[1] sha256:{"0" * 64}', "is missing"),
    ('return %x "out" nobody float32[2]', "'nobody' is not a kind of output"),
    ("guard %x maybe", "'taken' or 'refused'"),
    ("end", "'end' without 'graph'"),
    ('graph "g"', "ends without 'end'"),
    ('%y = aten.neg.default(device("moon"))', "is not a device"),
]


@pytest.mark.parametrize(("line", "message"), FAULTS, ids=[m for _, m in FAULTS])
def test_a_faulty_line_is_named_with_its_number_and_shown(line, message):
    text = f'program p\n  arg %x "x" float32[2]\n  {line}\n'

    with pytest.raises(ProgramError) as caught:
        parse_program(text)

    assert message in caught.value.message
    assert "line 3: " in caught.value.message
    assert '  2    arg %x "x" float32[2]' in caught.value.message
    assert f"> 3    {line}" in caught.value.message


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "prog x", "program"])
def test_a_text_without_a_program_line_is_refused(text):
    with pytest.raises(ProgramError, match="program"):
        parse_program(text)


def test_a_constant_with_another_content_is_refused():
    build = Builder()
    build.returns("c", build.call(aten.neg.default, build.constant("c", torch.zeros(100))))
    program = build.finish()
    (digest,) = constants_of(program)

    with pytest.raises(ProgramError, match="is another one"):
        parse_program(print_program(program), {digest: torch.ones(100)})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_text_parses_or_raises_a_program_error(data):
    text = print_program(linear())
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 5))
    inserted = data.draw(st.text(alphabet='%"()[]{}=,#<->x0. \n', max_size=3))
    damaged = text[:at] + inserted + text[at + length :]

    # Any other exception than a ProgramError fails the test.
    with contextlib.suppress(ProgramError):
        parse_program(damaged)
