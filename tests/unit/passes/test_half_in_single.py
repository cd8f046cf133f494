"""float16 products and sums are those of float32, rounded once."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from tests.unit.program.builder import Builder, aten, run

from pantile.passes.half_in_single import half_in_single
from pantile.program.program import Program
from pantile.program.spec import NodeTag
from pantile.program.verify import verify

HALF, SINGLE = torch.float16, torch.float32
X = (4, 6)
IMAGE, KERNEL = (2, 3, 8, 8), (5, 3, 3, 3)
CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
QUERY = (1, 2, 4, 8)

CASES: list[tuple[Any, list[tuple[int, ...]], tuple[Any, ...]]] = [
    (aten.mm.default, [X, (6, 5)], ()),
    (aten.addmm.default, [(5,), X, (6, 5)], ()),
    (aten.bmm.default, [(2, 4, 6), (2, 6, 5)], ()),
    (aten.baddbmm.default, [(2, 4, 5), (2, 4, 6), (2, 6, 5)], ()),
    (aten.mv.default, [X, (6,)], ()),
    (aten.dot.default, [(6,), (6,)], ()),
    (aten.convolution.default, [IMAGE, KERNEL, (5,)], CONVOLUTION),
    (
        aten.convolution_backward.default,
        [(2, 5, 8, 8), IMAGE, KERNEL],
        ([5], *CONVOLUTION, [True, True, True]),
    ),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, [QUERY, QUERY, QUERY], ()),
    (aten.sum.dim_IntList, [X], ([1],)),
    (aten.mean.default, [X], ()),
    (aten.var_mean.correction, [X], ([1],)),
    (aten.linalg_vector_norm.default, [X], ()),
    (aten.cumsum.default, [X], (1,)),
    (aten._softmax.default, [X], (1, False)),
    (aten._softmax_backward_data.default, [X, X], (1, HALF)),
    (aten.native_layer_norm.default, [X], ([6], None, None, 1e-5)),
]


def program_of(
    target: Any, shapes: list[tuple[int, ...]], rest: Any, dtype: torch.dtype
) -> Program:
    """One call of `target` on tensors of those shapes; all its tensors are returned."""
    build = Builder()
    inputs = [build.input(f"x{i}", shape, dtype=dtype) for i, shape in enumerate(shapes)]
    called = build.call(target, *inputs, *rest, tag=NodeTag("forward", 3, "net"))
    value = called.meta["val"]
    if isinstance(value, torch.Tensor):
        build.returns("out", called)
    else:
        for i in range(len(value)):
            build.returns(f"out{i}", build.call(operator.getitem, called, i))
    return build.finish()


@pytest.mark.parametrize(("target", "shapes", "rest"), CASES, ids=lambda v: str(v)[:40])
def test_the_result_is_that_of_float32_rounded(target: Any, shapes: Any, rest: Any) -> None:
    before = program_of(target, shapes, rest, HALF)
    inputs = [torch.randn(shape).to(HALF) for shape in shapes]

    after = half_in_single(before)

    verify(after)
    assert half_in_single(after) is after
    wide = tuple(SINGLE if value is HALF else value for value in rest)
    wanted = target(*(x.float() for x in inputs), *wide)
    wanted = [wanted] if isinstance(wanted, torch.Tensor) else wanted
    for got, value, output in zip(run(after, *inputs), wanted, before.outputs, strict=True):
        assert got.dtype is output.spec.dtype
        assert torch.equal(got, value.to(got.dtype))


def test_nothing_is_multiplied_in_float16_and_tags_stay() -> None:
    before = program_of(aten.addmm.default, [(5,), X, (6, 5)], (), HALF)

    after = half_in_single(before)

    (product,) = (n for n in after.graph.nodes if n.target is aten.addmm.default)
    assert {n.meta["val"].dtype for n in (product, *product.all_input_nodes)} == {SINGLE}
    calls = [n for n in after.graph.nodes if n.op == "call_function"]
    assert all(n.meta["tag"] == NodeTag("forward", 3, "net") for n in calls)


def test_an_operand_is_widened_once() -> None:
    build = Builder()
    x = build.input("x", (4, 4), dtype=HALF)
    first = build.call(aten.mm.default, x, x)
    build.returns("out", build.call(aten.mm.default, first, x))

    after = half_in_single(build.finish())

    names = [n.target for n in after.graph.nodes if n.op == "call_function"]
    assert names.count(aten._to_copy.default) == 4  # x; the first product, rounded and widened; out


@pytest.mark.parametrize(
    ("target", "rest"), [(aten.sum.dim_IntList, ([1],)), (aten.mean.dim, ([0],))], ids=str
)
def test_a_sum_asked_for_in_float16_is_rounded_at_the_end(target: Any, rest: Any) -> None:
    build = Builder()
    x = build.input("x", X)
    build.returns("out", build.call(target, x, *rest, dtype=HALF))
    values = torch.randn(X)

    after = half_in_single(build.finish())

    verify(after)
    assert torch.equal(run(after, values)[0], target(values, *rest).to(HALF))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_types_stay_as_they_are(dtype: torch.dtype) -> None:
    before = program_of(aten.mm.default, [X, (6, 5)], (), dtype)

    assert half_in_single(before) is before


def test_elementwise_ops_stay_as_they_are() -> None:
    before = program_of(aten.mul.Tensor, [X, X], (), HALF)

    assert half_in_single(before) is before
