"""Volumes: convolutions and pools in three dims, which are made of those in two."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check
from torch.nn import functional

aten = torch.ops.aten


def convolution_case(
    name: str, shape, weight, bias=True, groups=1, transposed=False, **how
) -> Case:
    stride, padding = how.get("stride", [1] * 3), how.get("padding", [0] * 3)
    dilation, more = how.get("dilation", [1] * 3), how.get("more", [0] * 3)
    geometry = (stride, padding, dilation, transposed, more, groups)
    x, w = torch.randn(shape), torch.randn(weight)
    b = torch.randn(weight[1] * groups if transposed else weight[0]) if bias else None
    y = aten.convolution.default(x, w, b, *geometry)

    def function(x, w, dy, *b):
        b = b[0] if b else None
        parts = aten.convolution_backward.default(
            dy, x, w, None if b is None else b.shape, *geometry, [True, True, b is not None]
        )
        found = [part for part in parts if part is not None]
        return (aten.convolution.default(x, w, b, *geometry).relu(), *found)

    return Case(name, function, (x, w, torch.randn_like(y), *([b] if bias else [])))


def test_convolutions_of_volumes_and_their_gradients_are_those_of_torch() -> None:
    check(
        [
            convolution_case("plain", (2, 3, 5, 6, 7), (4, 3, 3, 3, 3)),
            convolution_case("padded", (1, 5, 3, 4, 4), (17, 5, 3, 3, 3), padding=[1, 1, 1]),
            convolution_case("strided", (2, 2, 7, 6, 5), (3, 2, 3, 2, 3), stride=[2, 1, 2]),
            convolution_case(
                "strided with a rest", (1, 2, 8, 5, 5), (3, 2, 3, 3, 3), stride=[2, 2, 2]
            ),
            convolution_case(
                "dilated", (1, 2, 9, 7, 6), (3, 2, 3, 2, 2), dilation=[3, 2, 1], padding=[2, 0, 1]
            ),
            convolution_case("grouped", (2, 6, 4, 4, 4), (9, 2, 2, 3, 3), groups=3, bias=False),
            convolution_case("planes only", (2, 4, 4, 6, 6), (8, 4, 1, 3, 3), padding=[0, 1, 1]),
            convolution_case("one point", (1, 3, 2, 2, 2), (5, 3, 1, 1, 1), stride=[1, 2, 2]),
        ]
    )


def test_transposed_convolutions_of_volumes_are_those_of_torch() -> None:
    check(
        [
            convolution_case("plain", (2, 3, 3, 4, 5), (3, 4, 3, 3, 3), transposed=True),
            convolution_case(
                "strided", (1, 4, 3, 3, 3), (4, 5, 3, 2, 3), transposed=True, stride=[2, 2, 3],
                padding=[1, 0, 1], more=[1, 0, 2],
            ),
            convolution_case(
                "grouped", (1, 6, 3, 3, 3), (6, 2, 2, 2, 2), groups=2, transposed=True, bias=False,
                dilation=[2, 1, 1],
            ),
        ]
    )  # fmt: skip


def max_case(name: str, shape, *window) -> Case:
    x = torch.randn(shape)
    full = [*window, *([], [0, 0, 0], [1, 1, 1], False)[len(window) - 1 :]]
    y = aten.max_pool3d_with_indices.default(x, *full)[0]

    def function(x, dy):
        # Equal values: the first of them gets the gradient.
        steps = (x * 2).round()
        values, found = aten.max_pool3d_with_indices.default(steps, *full)
        back = aten.max_pool3d_with_indices_backward.default(dy, steps, *full, found)
        return values + 1, back

    return Case(name, function, (x, torch.randn_like(y)))


def test_maxima_of_boxes_and_gradients_are_those_of_torch() -> None:
    check(
        [
            max_case("plain", (2, 3, 4, 6, 8), [2, 2, 2]),
            max_case("overlapping", (1, 5, 5, 7, 5), [3, 3, 2], [1, 2, 1]),
            max_case("padded", (2, 7, 5, 5, 4), [3, 3, 3], [2, 2, 2], [1, 1, 1]),
            max_case("dilated", (1, 2, 7, 7, 7), [2, 2, 2], [1, 1, 1], [0, 0, 0], [2, 3, 1]),
            max_case("ceil", (1, 4, 8, 9, 6), [3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], True),
            max_case("one volume", (3, 4, 4, 4), [2, 2, 2]),
        ]
    )


def mean_case(name: str, shape, *window) -> Case:
    x = torch.randn(shape)
    y = aten.avg_pool3d.default(x, *window)
    full = [*window, *([], [0, 0, 0], False, True, None)[len(window) - 1 :]]

    def function(x, dy):
        return (
            aten.avg_pool3d.default(x, *window) + 1,
            aten.avg_pool3d_backward.default(dy, x, *full),
        )

    return Case(name, function, (x, torch.randn_like(y)))


def adaptive_mean_case(shape, size) -> Case:
    x = torch.randn(shape)
    y = aten._adaptive_avg_pool3d.default(x, size)

    def function(x, dy):
        return (
            aten._adaptive_avg_pool3d.default(x, size).tanh(),
            aten._adaptive_avg_pool3d_backward.default(dy, x),
        )

    return Case(f"adaptive {shape} {size}", function, (x, torch.randn_like(y)))


def test_means_of_boxes_and_gradients_are_those_of_torch() -> None:
    check(
        [
            mean_case("plain", (2, 3, 4, 6, 8), [2, 2, 2]),
            mean_case("padded", (2, 7, 5, 5, 4), [3, 3, 3], [2, 2, 2], [1, 1, 1]),
            mean_case(
                "not counted", (1, 3, 5, 7, 6), [3, 3, 2], [1, 2, 1], [1, 1, 1], False, False
            ),
            mean_case("ceil", (1, 4, 8, 9, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1], True, True),
            mean_case(
                "ceil, inside", (1, 4, 8, 9, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1], True, False
            ),
            mean_case("divisor", (2, 3, 4, 6, 6), [2, 2, 3], [2, 2, 3], [0, 0, 0], False, True, 5),
            mean_case("one volume", (3, 4, 4, 4), [2, 2, 2]),
            adaptive_mean_case((2, 3, 5, 7, 4), [3, 2, 2]),
            adaptive_mean_case((3, 4, 4, 6), [1, 1, 1]),
        ]
    )


def adaptive_max_case(shape, size) -> Case:
    x = torch.randn(shape)
    pool = functional.adaptive_max_pool2d if len(size) == 2 else functional.adaptive_max_pool3d
    name = "adaptive_max_pool2d" if len(size) == 2 else "adaptive_max_pool3d"
    back = getattr(aten, f"{name}_backward").default
    y = pool(x, size)

    def function(x, dy):
        steps = (x * 2).round()
        values, places = getattr(aten, name).default(steps, size)
        return values + 1, back(dy, steps, places)

    return Case(f"{shape} {size}", function, (x, torch.randn_like(y)))


def test_adaptive_maxima_and_gradients_are_those_of_torch() -> None:
    check(
        [
            adaptive_max_case((2, 3, 6, 4), [3, 2]),
            adaptive_max_case((2, 17, 7, 5), [3, 2]),
            adaptive_max_case((5, 4, 3), [7, 3]),
            adaptive_max_case((1, 2, 4, 6, 6), [2, 3, 2]),
            adaptive_max_case((2, 2, 5, 7, 4), [2, 3, 3]),
        ]
    )


def test_places_of_uneven_maxima_are_those_of_torch() -> None:
    def places(x):
        return aten.adaptive_max_pool3d.default(x, [2, 3, 3])[1]

    check([Case("places", places, (torch.randn(2, 2, 5, 7, 4),))])


@pytest.mark.parametrize("dims", [1, 2])
def test_pools_of_one_image_are_those_of_torch(dims: int) -> None:
    pools = {
        1: (functional.max_pool1d, functional.avg_pool1d, functional.adaptive_avg_pool1d),
        2: (functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d),
    }[dims]
    x = torch.randn(3, *(8,) * dims)

    def loss(x):
        return sum((pool(x, 2) ** 2).sum() for pool in pools)

    check(
        [
            Case("values", lambda x: tuple(pool(x, 2) for pool in pools), (x,)),
            Case("gradient", torch.func.grad(loss), (x,)),
        ]
    )
