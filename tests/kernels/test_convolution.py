"""Convolutions of random geometry, all their gradients, and what is computed after them."""

from __future__ import annotations

import random

import pytest
import torch
from tests.kernels.programs import Case, check, taken, why_refused

F = torch.nn.functional


def with_gradients(name, inputs, options, after):
    x, w, b = inputs
    dy = torch.randn(F.conv2d(x, w, b, **options).shape)

    def call(x, w, b, dy):
        with torch.enable_grad():
            y, backward = torch.func.vjp(lambda *a: after(F.conv2d(*a, **options)), x, w, b)
        return y, *backward(dy)

    return Case(name, call, (x, w, b, dy))


AFTER = {
    "plain": lambda y: y,
    "relu": torch.relu,
    "gelu": lambda y: F.gelu(y + 1),
    "norm": lambda y: F.batch_norm(y, None, None, training=True),
}


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pair = lambda *choices: (rng.choice(choices), rng.choice(choices))  # noqa: E731
    kernel, stride, dilation = pair(1, 2, 3, 5), pair(1, 1, 2, 3), pair(1, 1, 2)
    padding = pair(0, 1, 2, 3)
    least = [
        max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    h, w = (n + rng.randrange(8) for n in least)
    channels, filters = rng.choice([1, 2, 3, 5, 16, 17, 33]), rng.choice([1, 3, 8, 16, 18, 33, 65])
    x = torch.randn(rng.choice([1, 2, 5]), channels, h, w)
    if rng.randrange(2):
        x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(filters, channels, *kernel)
    if rng.randrange(3) == 0:
        weight = weight.contiguous(memory_format=torch.channels_last)
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    kind = rng.choice(sorted(AFTER))
    name = f"{seed} {kind} {tuple(x.shape)} {tuple(weight.shape)} {options}"
    return with_gradients(name, (x, weight, torch.randn(filters)), options, AFTER[kind])


@pytest.mark.parametrize("batch", range(3))
def test_convolutions_of_random_geometry_are_as_good_as_torchs(batch):
    cases = taken(random_case(seed) for seed in range(batch * 5, batch * 5 + 5))
    assert len(cases) == 5
    check(cases, times=6)


def test_images_that_are_views_are_convolved():
    x, w = torch.randn(2, 6, 9, 9), torch.randn(8, 3, 3, 3)
    cases = [
        Case("channels", lambda x, w: F.conv2d(x[:, 3:], w), (x, w)),
        Case("turned", lambda x, w: F.conv2d(x[:, :3].transpose(2, 3), w), (x, w)),
        Case("cut", lambda x, w: F.conv2d(x[:, ::2, 1:8, 2:], w), (x, w)),
        Case("computed", lambda x, w: F.conv2d(torch.tanh(x)[:, :3], w * 2), (x, w)),
        Case("shape", lambda x, w: F.conv2d(x.reshape(4, 3, 9, 9), w), (x, w)),
        Case("weight", lambda x, w: F.conv2d(x[:, :3], w.flip(2).transpose(2, 3)), (x, w)),
        Case("rest", lambda x, w: F.conv2d(x[:, :3], w) + F.conv2d(x[:, 3:], w), (x, w)),
    ]
    check(taken(cases))
    assert len(taken(cases)) >= 6


def test_a_weight_is_updated_in_place_by_its_gradient():
    def step(x, w, m, dy):
        with torch.enable_grad():
            y, backward = torch.func.vjp(lambda w: F.conv2d(x, w, padding=1), w)
        (gradient,) = backward(dy)
        m.mul_(0.9).add_(gradient)
        w.sub_(m * 0.01)
        return y

    sizes = [(17, 5, 3, 3), (17, 5, 3, 3), (2, 17, 8, 7)]
    inputs = (torch.randn(2, 5, 8, 7), *(torch.randn(size) for size in sizes))
    case = Case("update", step, inputs)
    assert why_refused(case) is None
    check([case])
