"""Kernels that differ in numbers only: one function, given the numbers."""

from __future__ import annotations

import re

import torch
from tests.kernels.programs import Case, check, graph_of

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.sharing import opened, opened_table, shared, skeleton
from pantile.lowering.kernels.source import sources


def test_numbers_that_differ_are_parameters_and_others_stay():
    texts = [f"f({opened(n)}, {opened(8)}, {opened(n)});" for n in (64, 128)]

    one = shared(texts, "k")

    assert skeleton(texts[0]) == skeleton(texts[1])
    assert one.text == "f(n0, 8, n0);"
    assert one.parameters == ", int n0"
    assert one.arguments == (", 64", ", 128")


def test_a_kernel_alone_has_its_numbers_in_its_text():
    one = shared([f"f({opened(0.5)}, {opened_table('Plan', 'plan<3>')});"], "k")

    assert (one.text, one.parameters, one.tables) == ("f(0.5, plan<3>);", "", ())


def test_floats_and_tables_have_their_types():
    texts = [f"f({opened(f'{n}.5f')}, {opened_table('Plan', f'plan<{n}>')});" for n in (1, 2)]

    one = shared(texts, "k")

    assert one.parameters == ", float n0, const Plan& n1"
    assert one.arguments == (", 1.5f, k_table0", ", 2.5f, k_table1")
    assert [table.constant for table in one.tables] == ["plan<1>", "plan<2>"]


def _sums(sizes: list[tuple[int, int]]) -> list[Case]:
    inputs = [torch.randn(rows, columns) for rows, columns in sizes]
    return [Case("", lambda x: (x.tanh() * x.sum(0),), (x,)) for x in inputs]


def test_sums_of_other_shapes_share_functions_and_are_right():
    check(_sums([(600, 256), (1200, 512), (900, 512)]))


def _functions(cases: list[Case]) -> int:
    """How many kernels a program of all cases has."""

    def whole(*given: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(given)
        return [y for case in cases for y in case.call([next(rest) for _ in case.inputs])]

    graph = graph_of(whole, [x for case in cases for x in case.inputs])
    text = "".join(sources(written(graph), 1))
    return len(re.findall(r"(?m)^APART_SHARED void k\d+\(", text))


def test_sums_of_other_shapes_are_no_more_kernels_than_one_of_them():
    assert _functions(_sums([(1280, 256), (2560, 512)])) == _functions(_sums([(1280, 256)]))


def _norms(sizes: list[tuple[int, int]]) -> list[Case]:
    """Means and what is divided by the number of rows: rows and columns are powers of two."""
    inputs = [torch.randn(rows, columns) for rows, columns in sizes]
    return [Case("", lambda x: (x - x.mean(0)) * (x.sum(0) / len(x)), (x,)) for x in inputs]


def test_norms_of_other_shapes_are_no_more_kernels_than_one_of_them():
    assert _functions(_norms([(1024, 128), (512, 256)])) == _functions(_norms([(512, 256)]))
    check(_norms([(1024, 128), (512, 256), (8192, 128)]))


def _strided(channels: int, size: int) -> Case:
    """The gradients of a convolution that halves images, and a step of its weight."""

    def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        backward = torch.ops.aten.convolution_backward.default
        wanted = [True, True, False]
        dx, dw, _ = backward(dy, x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, wanted)
        y = torch.ops.aten.convolution.default(x, w, None, [2] * 2, [1] * 2, [1] * 2, False, [0], 1)
        return y, dx, w - 0.1 * dw

    weight = torch.randn(2 * channels, channels, 3, 3)
    half = size // 2
    x, dy = torch.randn(40, channels, size, size), torch.randn(40, 2 * channels, half, half)
    images = [image.to(memory_format=torch.channels_last) for image in (dy, x)]
    return Case(f"{channels}", run, (*images, weight))


def test_gradients_of_strided_convolutions_and_packs_share_functions_and_are_right():
    """More than twelve convolutions share loops; of other sizes they are the same functions."""
    one, other = _strided(32, 8), _strided(64, 10)

    assert _functions([one] * 5 + [other] * 5) == _functions([one] * 10)
    check([one, other, _strided(96, 6), _strided(48, 8), _strided(80, 2)])


def test_a_long_row_of_calls_is_not_optimised_and_runs_every_kernel():
    def layers(count: int) -> Case:
        def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.softmax(x @ w, 1)
            return x

        return Case("", run, (torch.randn(5, 7), torch.randn(7, 7)))

    def is_plain(case: Case) -> bool:
        graph = graph_of(lambda *given: list(case.call(given)), case.inputs)
        text = "".join(sources(written(graph), 1))
        return "UNOPTIMISED static bool run_kernels0(" in text

    assert (is_plain(layers(9)), is_plain(layers(120))) == (False, True)
    check([layers(120)])
