"""Means of windows, adaptive ones too, and their gradients."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, check

aten = torch.ops.aten


def mean_case(name: str, shape: tuple[int, ...], *window) -> Case:
    x = torch.randn(shape)
    y = aten.avg_pool2d.default(x, *window)
    full = [*window, *([], [0, 0], False, True, None)[len(window) - 1 :]]

    def function(x, dy):
        return (
            aten.avg_pool2d.default(x * 2, *window) + 1,
            aten.avg_pool2d_backward.default(dy, x, *full).abs(),
        )

    return Case(name, function, (x, torch.randn_like(y)))


def adaptive_case(shape: tuple[int, ...], size: list[int]) -> Case:
    x = torch.randn(shape)
    y = aten._adaptive_avg_pool2d.default(x, size)

    def function(x, dy):
        return (
            aten._adaptive_avg_pool2d.default(x, size).tanh(),
            aten._adaptive_avg_pool2d_backward.default(dy, x),
        )

    return Case(f"adaptive {shape} {size}", function, (x, torch.randn_like(y)))


def test_means_of_windows_and_gradients_are_those_of_torch() -> None:
    check(
        [
            mean_case("plain", (2, 3, 6, 8), [2, 2]),
            mean_case("overlapping", (1, 17, 7, 5), [3, 2], [1, 2]),
            mean_case("padded", (2, 70, 5, 5), [3, 3], [2, 2], [1, 1]),
            mean_case("padding not counted", (2, 5, 7, 6), [3, 3], [1, 1], [1, 1], False, False),
            mean_case("ceil", (1, 4, 8, 9), [3, 3], [2, 2], [1, 1], True, True),
            mean_case("ceil, not counted", (1, 4, 8, 9), [3, 2], [3, 2], [1, 0], True, False),
            mean_case("another divisor", (2, 3, 6, 6), [2, 3], [2, 3], [0, 0], False, True, 7),
            mean_case("apart", (2, 3, 9, 9), [2, 2], [4, 3]),
            mean_case("one pixel", (1, 1, 1, 1), [1, 1]),
        ]
    )


def test_adaptive_means_and_gradients_are_those_of_torch() -> None:
    check(
        [
            adaptive_case((2, 3, 7, 5), [3, 2]),
            adaptive_case((1, 66, 4, 4), [7, 7]),
            adaptive_case((2, 5, 6, 6), [1, 1]),
            adaptive_case((2, 2, 8, 4), [4, 3]),
        ]
    )
