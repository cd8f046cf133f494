"""An operand that many products of a step read is packed once, and again after it was written."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, check, graph_of

from pantile.lowering.kernels.generate import written


def steps(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = torch.tanh(x @ w.t())
    return x


def packs(case: Case) -> int:
    graph = graph_of(lambda *given: list(case.call(given)), case.inputs)
    return sum(function.note.startswith("packs") for function in written(graph).functions)


def test_a_recurrent_weight_is_packed_once_for_all_steps() -> None:
    case = Case("steps", lambda x, w: [steps(x, w, 10)], (torch.randn(6, 40), torch.randn(40, 40)))
    assert packs(case) == 1
    check([case])


def test_a_weight_of_a_few_products_is_packed_where_it_is_read() -> None:
    case = Case("steps", lambda x, w: [steps(x, w, 3)], (torch.randn(6, 40), torch.randn(40, 40)))
    assert packs(case) == 0


def test_for_a_single_row_many_steps_are_worth_it() -> None:
    often, seldom = (
        Case("row", lambda x, w, n=n: [steps(x, w, n)], (torch.randn(1, 40), torch.randn(40, 40)))
        for n in (20, 10)
    )
    assert (packs(often), packs(seldom)) == (1, 0)
    check([often])


def test_products_read_the_old_weight_and_the_update_is_theirs() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            y, pull = torch.func.vjp(lambda w: steps(x, w, 9), w)
        w.copy_(w - 0.1 * pull(torch.ones_like(y))[0])
        return [y]

    case = Case("training", step, (torch.randn(6, 40), torch.randn(40, 40)))
    assert packs(case) == 2  # as it is multiplied forward, and backward
    check([case])
