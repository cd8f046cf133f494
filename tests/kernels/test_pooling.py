"""Max pooling and its gradient: windows that overlap, go over the border, or are spread out."""

from __future__ import annotations

import random

import pytest
import torch
from tests.kernels.programs import Case, check, graph_of, taken

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.source import place

F = torch.nn.functional


def pooled(x, dy, window):
    with torch.enable_grad():
        y, backward = torch.func.vjp(lambda x: F.max_pool2d(x, *window), x)
    return y, *backward(dy)


def case_of(name, x: torch.Tensor, window) -> Case:
    """The pooled values, the gradient, and something computed from each."""
    dy = torch.randn(F.max_pool2d(x, *window).shape)

    def call(x, dy):
        y, dx = pooled(torch.relu(x) if name.startswith("relu") else x, dy, window)
        return y, dx, y * 2 + 1, dx.abs()

    return Case(f"{name} {tuple(x.shape)} {window}", call, (x, dy))


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    size = (rng.randrange(1, 5), rng.randrange(1, 5))
    stride = rng.choice([size, (1, 1), (2, 1), (2, 3), (3, 2)])
    padding = (rng.randrange(size[0] // 2 + 1), rng.randrange(size[1] // 2 + 1))
    dilation = rng.choice([(1, 1), (1, 1), (2, 1), (1, 3)])
    ceil = bool(rng.randrange(2))
    least = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    h, w = (n + rng.randrange(9) for n in least)
    shape = (rng.choice([1, 2, 3]), rng.choice([1, 3, 5, 16, 17, 70]), h, w)
    x = torch.randn(shape)
    if rng.randrange(2):
        x = x.contiguous(memory_format=torch.channels_last)
    kind = rng.choice(["plain", "relu", "equal", "odd"])
    if kind == "equal":
        x = x.mul(2).round()
    if kind == "odd":
        for number in (float("nan"), float("-inf"), float("inf")):
            x[tuple(rng.randrange(n) for n in x.shape)] = number
    return case_of(kind, x, (size, stride, padding, dilation, ceil))


@pytest.mark.parametrize("batch", range(2))
def test_pooling_of_random_windows_gives_what_torch_gives(batch):
    cases = taken(random_case(seed) for seed in range(batch * 10, batch * 10 + 10))
    assert len(cases) >= 8
    check(cases)


def test_windows_beyond_the_border_do_not_read_there():
    shapes = [(1, 3, 6, 6), (2, 17, 7, 10)]
    check([case_of("ceil", torch.randn(s), (3, 2, 0, 1, True)) for s in shapes])
    check([case_of("ceil", torch.randn(s), (2, 3, 0, 1, True)) for s in shapes])


def test_a_window_of_nothing_but_minus_infinity_gives_the_gradient_to_the_first():
    check([case_of("low", torch.full((1, 2, 4, 4), float("-inf")), (2, 2))])


def test_the_gradient_of_a_pooled_convolution_is_torchs():
    def call(x, w, dy):
        def layer(x, w):
            return F.max_pool2d(torch.relu(F.conv2d(x, w, padding=1)), 2)

        with torch.enable_grad():
            y, backward = torch.func.vjp(layer, x, w)
        return y, *backward(dy)

    check(
        [
            Case(
                "conv",
                call,
                (torch.randn(2, 3, 9, 8), torch.randn(17, 3, 3, 3), torch.randn(2, 17, 4, 4)),
            )
        ]
    )


def odd_numbers(shape: tuple[int, ...]) -> torch.Tensor:
    """Few different values, so that many are equal, and some that are no numbers."""
    values = torch.tensor([0.0, -1.0, 2.0, float("nan"), float("inf"), float("-inf")])
    return values[torch.randint(len(values), shape)]


@pytest.mark.parametrize("channels", [16, 48, 70])
def test_of_equal_values_and_of_several_nans_the_same_is_taken_as_in_torch(channels):
    torch.manual_seed(channels)
    windows = [(2, 2), (3, 2, 1), (2, 3, 0, 1, True)]
    check([case_of("odd", odd_numbers((2, channels, 8, 7)), window) for window in windows])


def layers(x, w, v, dy):
    """A pooled convolution and another one: the first result is not needed after its gradient."""

    def layer(w, v):
        return F.conv2d(F.max_pool2d(torch.relu(F.conv2d(x, w, padding=1)), 2), v)

    with torch.enable_grad():
        _, backward = torch.func.vjp(layer, w, v)
    return backward(dy)


def test_the_gradient_is_written_over_the_image_if_that_is_not_needed_any_more():
    given = (
        torch.randn(3, 3, 9, 8),
        torch.randn(17, 3, 3, 3),
        torch.randn(5, 17, 2, 2),
        torch.randn(3, 5, 3, 3),
    )
    writer = written(graph_of(lambda *given: list(layers(*given)), given))
    place(writer)
    (gradient,) = (f for f in writer.functions if "max_pool_input" in f.note)

    assert any(pointer.buffer.replaces is not None for pointer in gradient.used)
    check([Case("in place", layers, given)])


def test_the_gradient_of_windows_that_overlap_gets_memory_of_its_own():
    def call(x, dy):
        image = torch.relu(x + 1)
        return (pooled(image * 2, dy, (3, 2))[1],)

    given = torch.randn(2, 16, 9, 9), torch.randn(2, 16, 4, 4)
    writer = written(graph_of(lambda *given: list(call(*given)), given))
    (gradient,) = (f for f in writer.functions if "max_pool_input" in f.note)

    assert not gradient.over
    check([Case("overlapping", call, given)])
