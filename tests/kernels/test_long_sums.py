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


def test_a_mean_of_whole_numbers_is_rounded_once() -> None:
    """Their sum is exact, so only the division is left; the float next to 1 / 405 is 4e-8 off."""
    whole = (_random(5, 200, 9, 9) * 1000).round()
    case = Case("means of 405", _mean_of_channels, (whole,))

    for ran in run_together([case], (1, 2)):
        assert torch.equal(ran.results[0], (whole.double().sum((0, 2, 3)) / 405).float())
