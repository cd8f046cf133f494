"""Convolutions in groups, of one dim, and transposed ones, with all their gradients."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check

aten = torch.ops.aten


def case(name, images, weight, *, bias=True, stride=1, padding=0, dilation=1, **how) -> Case:
    """The results and all three gradients of one convolution."""
    dims = len(images) - 2
    transposed, groups = how.get("transposed", False), how.get("groups", 1)
    extra = how.get("extra", 0)
    pairs = [x if isinstance(x, list) else [x] * dims for x in (stride, padding, dilation, extra)]
    geometry = (*pairs[:3], transposed, pairs[3], groups)
    channels = weight[1] * groups if transposed else weight[0]
    x, w = torch.randn(images), torch.randn(weight)
    b = torch.randn(channels) if bias else None
    y = aten.convolution.default(x, w, b, *geometry)

    def function(x, w, dy, *b):
        y = aten.convolution.default(x, w, b[0] if b else None, *geometry)
        sizes = [channels] if b else None
        gradients = aten.convolution_backward.default(
            dy, x, w, sizes, *geometry, [True, True, bool(b)]
        )
        return (torch.relu(y), *(gradient for gradient in gradients if gradient is not None))

    given = (x, w, torch.randn_like(y)) if b is None else (x, w, torch.randn_like(y), b)
    return Case(name, function, given)


GROUPED = [
    case("two groups", (2, 6, 7, 5), (8, 3, 3, 3), groups=2, padding=1),
    case("many groups of one to two", (1, 5, 6, 6), (10, 1, 3, 3), groups=5),
    case("groups with stride", (3, 8, 9, 9), (12, 2, 3, 2), groups=4, stride=2, padding=1),
    case("wide groups", (2, 36, 5, 6), (40, 18, 1, 1), groups=2, bias=False),
    case("groups with dilation", (2, 4, 9, 8), (4, 2, 3, 3), groups=2, dilation=2, padding=2),
]

DEPTHWISE = [
    case("three channels", (2, 3, 7, 5), (3, 1, 3, 3), groups=3, padding=1),
    case("a vector and a bit", (2, 19, 6, 9), (19, 1, 5, 3), groups=19, padding=[2, 1]),
    case("stride two", (1, 16, 11, 9), (16, 1, 3, 3), groups=16, stride=2, padding=1, bias=False),
    case("seven by seven", (1, 33, 8, 13), (33, 1, 7, 7), groups=33, padding=3),
    case("dilated", (2, 5, 9, 10), (5, 1, 3, 3), groups=5, dilation=2, padding=1),
]

ONE_DIM = [
    case("plain", (2, 3, 11), (5, 3, 3), padding=1),
    case("stride", (3, 4, 17), (7, 4, 5), stride=3, bias=False),
    case("groups", (2, 6, 9), (6, 1, 4), groups=6, padding=3),
    case("one wide", (1, 1, 1), (2, 1, 1)),
]

TRANSPOSED = [
    case("plain", (2, 3, 5, 4), (3, 6, 3, 3), transposed=True),
    case("stride", (2, 5, 5, 4), (5, 3, 2, 2), transposed=True, stride=2, bias=False),
    case("more", (1, 4, 4, 5), (4, 7, 3, 3), transposed=True, stride=2, padding=1, extra=1),
    case("in groups", (2, 4, 6, 3), (4, 3, 3, 3), transposed=True, groups=2, padding=1),
    case("one dim", (2, 4, 6), (4, 3, 4), transposed=True, stride=2, padding=1),
]


@pytest.mark.parametrize(
    "cases",
    [GROUPED, DEPTHWISE, ONE_DIM, TRANSPOSED],
    ids=["grouped", "depthwise", "one_dim", "transposed"],
)
def test_convolutions_and_gradients_are_those_of_torch(cases: list[Case]) -> None:
    check(cases)
