"""Sums of thousands of products lose no more digits than eager's: they are added up in parts."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, eager, exact, run_together


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _weight_gradient(x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, False)
    gradient: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *rows)[1]
    return gradient


def _depthwise_gradient(x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = (1, 1), (1, 1), (1, 1), False, (0, 0), x.shape[1], (False, True, False)
    gradient: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *rows)[1]
    return gradient


def _mean_of_channels(x: torch.Tensor) -> torch.Tensor:
    mean: torch.Tensor = torch.ops.aten.var_mean.correction(x, [0, 2, 3], correction=0)[1]
    return mean


def _input_gradient(x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, False, False)
    gradient: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *rows)[0]
    return gradient


def _forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.convolution(x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)


PICTURES, KERNELS = _random(4, 256, 14, 14), _random(64, 256, 3, 3)
LARGE, OUT = _random(16, 24, 32, 32), _random(16, 48, 32, 32)
CASES = [
    Case("a product of 6000", torch.mm, (_random(48, 6000), _random(6000, 40))),
    Case("few rows", torch.mm, (_random(3, 6000), _random(6000, 20))),
    Case("a convolution of 2304", _forward, (PICTURES, KERNELS)),
    Case("a gradient of weights, 16384", _weight_gradient, (LARGE, OUT, _random(48, 24, 3, 3))),
    Case(
        "a gradient of depthwise weights, 16384",
        _depthwise_gradient,
        (LARGE, _random(16, 24, 32, 32).flip(0), _random(24, 1, 3, 3)),
    ),
    Case(
        "a gradient of inputs, 2304",
        _input_gradient,
        (_random(4, 32, 14, 14), PICTURES, _random(256, 32, 3, 3)),
    ),
]


def test_long_sums_lose_at_most_twice_the_digits_of_eager() -> None:
    for number, ran in enumerate(run_together(CASES, (1, 2))):
        case = CASES[number % len(CASES)]
        (best,), (own,) = exact(case).results, eager(case).results

        error = (ran.results[0].double() - best).abs().max()

        assert error <= 2 * (own.double() - best).abs().max(), (case.name, number)


def _far(*shape: int) -> torch.Tensor:
    """Numbers far from zero, so that partial sums are as large as they can be."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 3


FAR = [
    Case("a row of 1331 in lines of 11", _mean_of_channels, (_far(11, 5, 11, 11),)),
    Case("images of 49", _mean_of_channels, (_far(64, 9, 7, 7),)),
    Case("images of 196", _mean_of_channels, (_far(8, 40, 14, 14),)),
    Case("images of 3136", _mean_of_channels, (_far(8, 6, 56, 56),)),
    Case("lines of 3, apart", lambda x: x.sum((0, 1, 3)), (_far(40, 50, 4, 3),)),
    Case("rows of 8199", lambda x: x.sum(1), (_far(5, 8199),)),
    Case("rows of 300 in three dims", lambda x: x.sum((0, 2)), (_far(77, 6, 300),)),
    Case("a million", lambda x: x.sum(), (_far(1000, 1000),)),
    Case("columns of 65536", lambda x: x.sum(0), (_far(65536, 20),)),
    Case("columns of 300 and 40", lambda x: x.sum((0, 1)), (_far(300, 40, 17),)),
    Case("squares", lambda x: (x * x).mean((0, 2)), (_far(500, 20, 5),)),
]


def test_sums_far_from_zero_end_at_a_neighbour_of_the_best_float() -> None:
    found = list(run_together(FAR, (1, 2)))

    for number, ran in enumerate(found):
        case = FAR[number % len(FAR)]
        (best,) = exact(case).results
        error = (ran.results[0].double() - best).abs()
        assert (error <= 2.0**-23 * best).all(), (case.name, float((error / best).max()))
    for one, two in zip(found, found[len(FAR) :], strict=False):
        assert torch.equal(one.results[0], two.results[0])


def test_long_means_are_rounded_once() -> None:
    """To the nearest float, or to the other neighbour where both are as near within a tenth."""
    means = [case for case in FAR if case.function is _mean_of_channels]

    for case, ran in zip(means, run_together(means), strict=True):
        (best,) = exact(case).results
        unit = torch.nextafter(best.float(), torch.tensor(torch.inf)).double() - best.float()
        assert ((ran.results[0].double() - best).abs() <= 0.6 * unit).all(), case.name


def test_sums_of_what_cancels_lose_at_most_twice_the_digits_of_eager() -> None:
    """A million normal numbers add up to a thousandth of what their sizes do."""
    cases = [
        Case("all", lambda x: x.sum(), (_random(1000, 1000),)),
        Case("rows", lambda x: x.sum(1), (_random(6, 70001),)),
        Case("columns", lambda x: x.sum(0), (_random(70001, 6),)),
        Case("images", lambda x: x.sum((0, 2, 3)), (_random(32, 24, 28, 28),)),
    ]

    for case, ran in zip(cases, run_together(cases), strict=True):
        (best,), (own,) = exact(case).results, eager(case).results
        error = (ran.results[0].double() - best).abs().max()
        assert error <= 2 * (own.double() - best).abs().max(), case.name


def test_sums_of_infinities_are_what_eager_makes_of_them() -> None:
    x = _far(5, 4099)
    x[0, 7], x[1, 4098], x[2, 3], x[2, 4000] = *[float("inf")] * 3, float("-inf")
    x[3, 9] = float("nan")
    cases = [Case("rows", lambda x: x.sum(1), (x,)), Case("columns", lambda x: x.t().sum(0), (x,))]

    for ran in run_together(cases):
        assert torch.equal(ran.results[0].isnan(), x.sum(1).isnan())
        assert torch.equal(ran.results[0].isinf(), x.sum(1).isinf())


def test_a_mean_of_whole_numbers_is_rounded_once() -> None:
    """Their sum is exact, so only the division is left; the float next to 1 / 405 is 4e-8 off."""
    whole = (_random(5, 200, 9, 9) * 1000).round()
    case = Case("means of 405", _mean_of_channels, (whole,))

    for ran in run_together([case], (1, 2)):
        assert torch.equal(ran.results[0], (whole.double().sum((0, 2, 3)) / 405).float())
