"""Random ops as functions of a seed: what they return, how it is distributed, what stays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.program.builder import Builder, aten, traced
from torch import fx

from pantile.lowering.reference import ReferenceExecutable
from pantile.lowering.retrace import inductor_table, retraced
from pantile.passes.counter_random import counter_random
from pantile.passes.drop_dead_code import drop_dead_code
from pantile.program.effects import is_random
from pantile.program.program import Program
from pantile.program.spec import Input, InputKind, NodeTag, TensorSpec
from pantile.program.text import constants_of, equal, parse_program, print_program
from pantile.program.verify import verify

COUNT = 1_000_000
SINGLE, DOUBLE = torch.float32, torch.float64
SEED, OTHER = 0x3AD38F0912BC77A1, 0x3AD38F0912BC77A2

# Which op, the shapes of its tensors, their types, its other arguments.
Call = tuple[Any, list[tuple[int, ...]], torch.dtype, tuple[Any, ...], dict[str, Any]]

ODDS = torch.tensor([0.1, 0.2, 0.3, 0.4])
STRUCTURES: list[Call] = [
    (aten.bernoulli.default, [(6, 4)], SINGLE, (), {}),
    (aten.bernoulli.p, [(6, 4)], torch.bfloat16, (0.3,), {}),
    (aten.bernoulli.p, [(6, 4)], torch.int64, (0.3,), {}),
    (aten.bernoulli.Tensor, [(6, 4), (6, 4)], DOUBLE, (), {}),
    (aten.native_dropout.default, [(6, 4)], SINGLE, (0.3, True), {}),
    (aten.native_dropout.default, [(6, 4)], torch.float16, (0.3, None), {}),
    (aten.native_dropout.default, [(6, 4)], SINGLE, (1.0, True), {}),
    (aten.native_dropout.default, [(6, 4)], SINGLE, (0.3, False), {}),
    (aten.rand.default, [], SINGLE, ([2, 3],), {}),
    (aten.rand.default, [], SINGLE, ([],), {"dtype": DOUBLE}),
    (aten.rand.default, [], SINGLE, ([0, 3],), {}),
    (aten.rand_like.default, [(6, 4)], torch.float16, (), {}),
    (aten.randn.default, [], SINGLE, ([2, 3],), {"dtype": torch.bfloat16}),
    (aten.randn_like.default, [(6, 4)], DOUBLE, (), {}),
    (aten.normal.Tensor_Tensor, [(6, 4), (4,)], SINGLE, (), {}),
    (aten.normal.Tensor_float, [(6, 4)], SINGLE, (2.0,), {}),
    (aten.normal.float_float, [], SINGLE, (1.0, 2.0, [5]), {}),
    (aten.normal_functional.default, [(6, 4)], torch.float16, (1.0, 2.0), {}),
    (aten.uniform.default, [(6, 4)], torch.bfloat16, (-1.0, 1.0), {}),
    (aten.log_normal.default, [(6, 4)], SINGLE, (), {}),
    (aten.exponential.default, [(6, 4)], DOUBLE, (2.0,), {}),
    (aten.cauchy.default, [(6, 4)], SINGLE, (), {}),
    (aten.geometric.default, [(6, 4)], torch.int32, (0.3,), {}),
    (aten.randint.default, [], SINGLE, (9, [2, 3]), {}),
    (aten.randint.low, [], SINGLE, (-9, 9, [7]), {"dtype": torch.int32}),
    (aten.randint_like.default, [(6, 4)], SINGLE, (9,), {}),
    (aten.randint_like.low_dtype, [(6, 4)], SINGLE, (3, 9), {"dtype": torch.uint8}),
    (aten.random.default, [(6, 4)], torch.int8, (), {}),
    (aten.random.to, [(6, 4)], SINGLE, (9,), {}),
    (getattr(aten.random, "from"), [(6, 4)], torch.int64, (9, None), {}),
    (aten.randperm.default, [], SINGLE, (7,), {}),
    (aten.multinomial.default, [(6, 4)], SINGLE, (1,), {}),
    (aten.multinomial.default, [(4,)], DOUBLE, (3,), {}),
    (aten.multinomial.default, [(6, 4)], torch.float16, (9, True), {}),
    (aten.rrelu_with_noise_functional.default, [(6, 4), (6, 4)], SINGLE, (0.1, 0.3, True), {}),
    (aten.rrelu_with_noise_functional.default, [(6, 4), (6, 4)], SINGLE, (0.1, 0.3, False), {}),
]


def program_of(call: Call, *, turned: bool = False) -> Program:
    """One call; all its tensors are returned. `turned`: its operands are transposed in memory."""
    target, shapes, dtype, rest, named = call
    build = Builder()
    inputs = [build.input(f"x{i}", shape, dtype=dtype) for i, shape in enumerate(shapes)]
    if turned:
        inputs = [build.call(aten.t.default, node) for node in inputs]
    drawn = build.call(target, *inputs, *rest, tag=NodeTag("forward", 1, "drop"), **named)
    value = drawn.meta["val"]
    if isinstance(value, torch.Tensor):
        build.returns("out", drawn)
    else:
        for i in range(len(value)):
            build.returns(f"out{i}", build.call(operator.getitem, drawn, i))
    return build.finish()


def converted(program: Program) -> Program:
    """The program with seeds, checked; nothing in it draws from a generator."""
    after = counter_random(program)
    verify(after)
    assert not any(is_random(node, after.subgraphs) for node in after.graph.nodes)
    assert counter_random(after) is after
    return after


def inputs_of(program: Program) -> list[torch.Tensor]:
    tensors = [e.spec for e in program.inputs if e.kind is not InputKind.SEEDS]
    return [torch.full(s.shape, 0.4).to(s.dtype) for s in tensors if isinstance(s, TensorSpec)]


def draw(program: Program, seed: int = SEED, *inputs: torch.Tensor) -> Any:
    """What a program of one site returns."""
    values = [*(inputs or inputs_of(program)), torch.tensor([seed])]
    results = ReferenceExecutable(program).run(values)
    return results[0] if len(results) == 1 else results


@pytest.mark.parametrize("call", STRUCTURES, ids=lambda c: f"{c[0]} {c[2]} {c[3]}")
def test_shape_type_and_strides_are_those_of_the_op_replaced(call: Call) -> None:
    before = program_of(call)

    after = converted(before)

    assert after.inputs[-1] == Input("seeds", InputKind.SEEDS, TensorSpec((1,), torch.int64))
    wanted = ReferenceExecutable(before).run(inputs_of(before))
    got = ReferenceExecutable(after).run([*inputs_of(after), torch.tensor([SEED])])
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (
            theirs.shape,
            theirs.dtype,
            theirs.stride(),
        )
    assert equal(parse_program(print_program(after), constants_of(after)), after)


def test_a_result_has_the_memory_order_of_its_operand() -> None:
    program = converted(program_of((aten.rand_like.default, [(6, 4)], SINGLE, (), {}), turned=True))

    assert draw(program).stride() == (1, 4)


def test_tags_stay() -> None:
    program = converted(program_of((aten.rand.default, [], SINGLE, ([3],), {})))

    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert all(node.meta["tag"] == NodeTag("forward", 1, "drop") for node in calls)


def test_the_same_seed_draws_the_same_bits_and_another_seed_others() -> None:
    program = converted(program_of((aten.rand.default, [], SINGLE, ([COUNT],), {})))

    first, again, other = draw(program), draw(program), draw(program, OTHER)

    assert torch.equal(first, again)
    assert abs(correlation(first, other)) < 4 / math.sqrt(COUNT)
    assert (first == other).double().mean() < 1e-5


def test_two_sites_have_seeds_of_their_own() -> None:
    build = Builder()
    for name in ("a", "b"):
        build.returns(name, build.call(aten.rand.default, [COUNT]))
    program = converted(build.finish())

    a, b = ReferenceExecutable(program).run([torch.tensor([SEED, OTHER])])

    assert program.inputs[-1].spec == TensorSpec((2,), torch.int64)
    assert abs(correlation(a, b)) < 4 / math.sqrt(COUNT)
    one = converted(program_of((aten.rand.default, [], SINGLE, ([COUNT],), {})))
    assert torch.equal(a, draw(one, SEED))
    assert torch.equal(b, draw(one, OTHER))


def test_every_element_is_uniform_over_seeds_in_sequence() -> None:
    program = converted(program_of((aten.rand.default, [], SINGLE, ([80],), {})))

    drawn = over_seeds(program, 1000)

    for element in (0, 1, 2, 63, 77):
        check_uniform((drawn[:, element] * 16).long(), 16)


def over_seeds(program: Program, count: int) -> torch.Tensor:
    """What a program without operands draws with the seeds 0, 1, 2, …"""
    executable = ReferenceExecutable(program)
    return torch.stack([executable.run([torch.tensor([seed])])[0] for seed in range(count)])


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


def check_uniform(values: torch.Tensor, count: int) -> None:
    """A chi-square test at five deviations."""
    found = torch.bincount(values.flatten(), minlength=count).double()
    assert found.numel() == count
    expected = values.numel() / count
    chi = float(((found - expected) ** 2 / expected).sum())
    assert abs(chi - (count - 1)) < 5 * math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, SINGLE, DOUBLE], ids=str)
def test_uniform_numbers_fill_the_unit_interval(dtype: torch.dtype) -> None:
    drawn = draw(
        converted(program_of((aten.rand.default, [], SINGLE, ([COUNT],), {"dtype": dtype})))
    )

    assert drawn.min() >= 0
    assert drawn.max() < 1
    check_uniform((drawn.double() * 64).long(), 64)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_it(p: float) -> None:
    call: Call = (aten.native_dropout.default, [(COUNT,)], SINGLE, (p, True), {})
    x = torch.randn(COUNT)

    out, kept = draw(converted(program_of(call)), SEED, x)

    sigma = math.sqrt(p * (1 - p) / COUNT)
    assert abs(kept.double().mean().item() - (1 - p)) < 4 * sigma
    torch.testing.assert_close(out, torch.where(kept, x / (1 - p), 0.0))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli_draws_its_share(p: float) -> None:
    call: Call = (aten.bernoulli.p, [(COUNT,)], SINGLE, (p,), {})

    drawn = draw(converted(program_of(call)))

    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert abs(drawn.double().mean().item() - p) <= 4 * math.sqrt(p * (1 - p) / COUNT)


def test_bernoulli_follows_a_tensor_of_probabilities() -> None:
    odds = torch.rand(COUNT)
    call: Call = (aten.bernoulli.default, [(COUNT,)], SINGLE, (), {})

    drawn = draw(converted(program_of(call)), SEED, odds)

    residue = (drawn - odds).double()
    assert abs(residue.mean().item()) < 4 * residue.std().item() / math.sqrt(COUNT)
    assert correlation(residue, odds) < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
def test_normal_numbers_have_the_moments_of_the_bell_curve(dtype: torch.dtype) -> None:
    call: Call = (aten.normal.float_float, [], SINGLE, (2.0, 3.0, [COUNT]), {"dtype": dtype})

    drawn = (draw(converted(program_of(call))).double() - 2.0) / 3.0

    root = math.sqrt(COUNT)
    assert abs(drawn.mean().item()) < 4 / root
    assert abs(drawn.var().item() - 1) < 4 * math.sqrt(2) / root
    assert abs((drawn**3).mean().item()) < 4 * math.sqrt(15) / root
    assert abs((drawn**4).mean().item() - 3) < 4 * math.sqrt(96) / root
    check_uniform((torch.special.ndtr(drawn) * 64).long().clamp_(max=63), 64)


DISTRIBUTIONS: list[tuple[Any, tuple[Any, ...], Callable[[torch.Tensor], torch.Tensor]]] = [
    (aten.uniform.default, (-2.0, 5.0), lambda x: (x + 2) / 7),
    (aten.exponential.default, (2.0,), lambda x: -torch.expm1(-2.0 * x)),
    (aten.cauchy.default, (1.0, 2.0), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    (aten.log_normal.default, (1.0, 0.5), lambda x: torch.special.ndtr((x.log() - 1) / 0.5)),
]


@pytest.mark.parametrize(
    ("target", "rest", "distribution"),
    DISTRIBUTIONS,
    ids=["uniform", "exponential", "cauchy", "log_normal"],
)
def test_a_distribution_function_makes_its_numbers_uniform(
    target: Any, rest: Any, distribution: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    drawn = draw(converted(program_of((target, [(COUNT,)], SINGLE, rest, {}))))

    check_uniform((distribution(drawn.double()) * 64).long().clamp_(0, 63), 64)


def test_geometric_numbers_have_the_odds_of_the_first_success() -> None:
    drawn = draw(converted(program_of((aten.geometric.default, [(COUNT,)], SINGLE, (0.3,), {}))))

    for k in range(1, 8):
        p = 0.3 * 0.7 ** (k - 1)
        assert abs((drawn == k).double().mean().item() - p) < 4 * math.sqrt(p * (1 - p) / COUNT)


@pytest.mark.parametrize(("low", "high"), [(0, 7), (-100, 157), (5, 6)])
def test_integers_are_uniform_in_their_range(low: int, high: int) -> None:
    drawn = draw(converted(program_of((aten.randint.low, [], SINGLE, (low, high, [COUNT]), {}))))

    assert drawn.min() == low
    assert drawn.max() == high - 1
    if high - low > 1:
        check_uniform(drawn - low, high - low)


def test_a_permutation_has_every_number_once_at_every_place_alike() -> None:
    program = converted(program_of((aten.randperm.default, [], SINGLE, (8,), {})))

    rows = over_seeds(program, 1000)

    assert torch.equal(rows.sort(dim=1).values, torch.arange(8).expand(1000, 8))
    for place in range(8):
        check_uniform(rows[:, place], 8)


@pytest.mark.parametrize(("samples", "replacement"), [(1, False), (3, False), (3, True)])
def test_samples_follow_their_odds(samples: int, replacement: bool) -> None:
    rows = 200_000
    call: Call = (aten.multinomial.default, [(rows, 4)], SINGLE, (samples, replacement), {})

    drawn = draw(converted(program_of(call)), SEED, ODDS.expand(rows, 4).contiguous())

    share = torch.bincount(drawn[:, 0], minlength=4).double() / rows
    assert ((share - ODDS).abs() < 4 * (ODDS * (1 - ODDS) / rows).sqrt()).all()
    if not replacement:
        assert all(len(set(row)) == samples for row in drawn[:500].tolist())
    else:
        pair = (drawn[:, 0] * 4 + drawn[:, 1]).bincount(minlength=16).double() / rows
        wanted = torch.outer(ODDS, ODDS).flatten()
        assert ((pair - wanted).abs() < 4.5 * (wanted * (1 - wanted) / rows).sqrt()).all()


def test_samples_never_have_a_probability_of_zero() -> None:
    odds = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).repeat(10_000, 1)
    for replacement in (False, True):
        call: Call = (aten.multinomial.default, [(10_000, 5)], SINGLE, (2, replacement), {})

        drawn = draw(converted(program_of(call)), SEED, odds)

        assert set(drawn.unique().tolist()) == {1, 3}


def test_a_leaky_slope_is_drawn_where_the_argument_is_negative() -> None:
    x = torch.randn(COUNT)
    call: Call = (
        aten.rrelu_with_noise_functional.default,
        [(COUNT,), (COUNT,)],
        SINGLE,
        (0.1, 0.3, True),
        {},
    )

    out, noise = draw(converted(program_of(call)), SEED, x, torch.zeros(COUNT))

    assert torch.equal(out, x * noise)
    assert (noise[x > 0] == 1).all()
    check_uniform(((noise[x <= 0].double() - 0.1) / 0.2 * 32).long().clamp_(0, 31), 32)


@pytest.mark.parametrize(
    "call",
    [
        (aten.poisson.default, [(3,)], SINGLE, (), {}),
        (aten.rand.generator, [], SINGLE, ([3],), {"generator": torch.Generator()}),
        (aten.randn.default, [], SINGLE, ([3],), {"dtype": torch.complex64}),
    ],
    ids=lambda c: str(c[0]),
)
def test_what_cannot_be_written_so_stays(call: Call) -> None:
    before = program_of(call)

    assert counter_random(before) is before


def test_a_branch_that_draws_stays() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    before = traced(lambda x: torch.cond(x.sum() > 0, branch, torch.cos, (x,)), torch.ones(3))

    assert counter_random(before) is before


def test_attention_without_dropout_draws_nothing() -> None:
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    before = program_of((attention, [(1, 2, 4, 8)] * 3, SINGLE, (), {}))

    assert counter_random(before) is before
    assert not any(is_random(node) for node in before.graph.nodes)
    node = fx.Graph().call_function(attention, (None, None, None, 0.1))
    assert is_random(node)


def test_more_sites_in_a_program_with_seeds_get_more_seeds() -> None:
    build = Builder()
    build.returns("a", build.call(aten.rand.default, [4]))
    first = converted(build.finish())

    def add_site(graph: fx.Graph) -> None:
        output = next(reversed(graph.nodes))
        (a,) = output.args[0]  # type: ignore[misc]
        with graph.inserting_before(output):
            drawn = graph.call_function(aten.rand_like.default, (a,))
        drawn.meta["val"] = a.meta["val"].clone()  # type: ignore[union-attr]
        output.args = ((drawn,),)

    second = converted(first.edit(add_site))

    assert [e.spec for e in second.inputs] == [TensorSpec((2,), torch.int64)]


def test_the_empty_tensor_that_dropout_fills_is_dropped() -> None:
    build = Builder()
    x = build.input("x", (4,))
    noise = build.call(aten.bernoulli.p, build.call(aten.empty_like.default, x), 0.5)
    build.returns("y", build.call(aten.mul.Tensor, x, noise))

    program = converted(build.finish())

    assert drop_dead_code(program) is program
    assert not any(n.target is aten.empty_like.default for n in program.graph.nodes)


@pytest.mark.slow  # compiles C++ that includes the headers of torch: 20 s
def test_compiled_code_draws_the_same_bits() -> None:
    """Through Inductor, whose loops compute in vectors and have a remainder."""
    build = Builder()
    x = build.input("x", (61, 33))
    out = build.call(aten.native_dropout.default, x, 0.25, True)
    build.returns("dropped", build.call(operator.getitem, out, 0))
    build.returns("integers", build.call(aten.randint.low, -5, 1000, [37]))
    build.returns("half", build.call(aten.rand.default, [101], dtype=torch.float16))
    build.returns("double", build.call(aten.rand.default, [101], dtype=torch.float64))
    build.returns("normal", build.call(aten.randn.default, [101]))
    program = converted(build.finish())
    module, _, _ = retraced(program, inductor_table(()))
    inputs = [torch.randn(61, 33), torch.tensor([SEED, OTHER, 0, 2**63 - 1, 1 << 62])]

    got = torch.compile(module)(*inputs)

    wanted = ReferenceExecutable(program).run(inputs)
    for ours, theirs in zip(got[:4], wanted[:4], strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(got[4], wanted[4], rtol=1e-5, atol=1e-5)
