"""Batch norm: what is zero on paper, such as the mean of a result, is as near to it as eager's."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, check, eager, exact, run_together, why_refused

aten = torch.ops.aten

CHANNELS = 200


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    training: bool = True,
) -> tuple[torch.Tensor, ...]:
    norm = aten._native_batch_norm_legit_functional.default
    found = norm(x, weight, bias, mean, var, training, 0.1, 1e-5)
    return tuple(found) if training else tuple(found[:1])


def _backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, training: bool = True
) -> tuple[torch.Tensor, ...]:
    dims = [0, *range(2, x.dim())]
    var, mean = torch.var_mean(x, dims, correction=0)
    rstd = (var + 1e-5).rsqrt()
    saved = (mean, var, mean, rstd) if training else (mean, var, mean[:0], rstd[:0])
    found: tuple[torch.Tensor, ...] = aten.native_batch_norm_backward.default(
        gradient, x, weight, *saved, training, 1e-5, [True, True, True]
    )
    return found


def _case(name: str, *shape: int) -> list[Case]:
    x, gradient, few = _random(*shape) * 0.3 + 0.1, _random(*shape), shape[1]
    weight, bias = _random(few).abs() + 1, torch.zeros(few)
    return [
        Case(f"{name}, forward", _forward, (x, weight, bias, _random(few), weight * 2)),
        Case(f"{name}, backward", _backward, (gradient + 0.5, x, weight)),
    ]


CASES = [
    *_case("images of 49", 6, CHANNELS, 7, 7),
    *_case("images of 9", 3, CHANNELS, 3, 3),
    *_case("lines of 100", 9, CHANNELS, 100),
    *_case("rows", 600, CHANNELS),
]


def _lost(results: tuple[torch.Tensor, ...], best: tuple[torch.Tensor, ...]) -> float:
    """The error of the mean of each channel of the first result: root of the mean square."""
    dims = [dim for dim in range(best[0].dim()) if dim != 1]
    return float((results[0].double() - best[0]).mean(dims).square().mean().sqrt())


def test_batch_norms_are_those_of_torch() -> None:
    shapes = (2, 5, 3, 7), (33, 17), (4, 3, 2, 3, 4), (3, 8, 16, 16)
    cases = [case for shape in shapes for case in _case(str(shape), *shape)]
    for number in (0, 1):
        given = cases[number].inputs
        function = _backward if number else _forward
        still = Case("not training", lambda *x, f=function: f(*x, training=False), given)
        cases.append(still)
    assert [case.name for case in cases if why_refused(case)] == []
    check(cases, times=3)


def test_channels_of_batch_norms_add_up_to_as_little_as_eagers() -> None:
    found = list(run_together(CASES, (1, 2)))

    for number, ran in enumerate(found):
        case = CASES[number % len(CASES)]
        best = exact(case).results
        assert _lost(ran.results, best) <= 1.25 * _lost(eager(case).results, best), case.name
