"""Epilogues that read many rows whose elements do not lie side by side."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, check, graph_of

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.source import sources


def _product(rows: int) -> Case:
    """A product to which transposed matrices are added, as the steps of a GRU are."""

    def run(a: torch.Tensor, b: torch.Tensor, kept: torch.Tensor, *others: torch.Tensor) -> object:
        total = a @ b
        for other in others:
            total = total + other.t()
        return kept - 0.1 * total

    others = [torch.randn(24, 72) for _ in range(rows)]
    return Case("", run, (torch.randn(72, 3), torch.randn(3, 24), torch.randn(72, 24), *others))


def _hides(case: Case) -> bool:
    graph = graph_of(lambda *given: list(case.call(given)), case.inputs)
    return "= afresh(p" in "".join(sources(written(graph), 1))


def test_gcc_is_not_told_how_many_rows_apart_follow_each_other():
    """It took gcc 12 nine seconds to find out what to count 11 such rows by."""
    assert (_hides(_product(3)), _hides(_product(11))) == (False, True)


def test_rows_apart_are_read_where_they_are():
    check([_product(3), _product(11)])
