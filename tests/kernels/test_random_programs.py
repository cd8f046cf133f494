"""Random programs: many operators on a few values, which are used again and written in place.

What this looks for are mistakes of the plan: a value that is overwritten too early, fused where it
must not be, or put into memory that is still needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tests.kernels.programs import Case, check, taken

N = 6
Values = list[torch.Tensor]


def square(rng: random.Random, values: Values) -> torch.Tensor:
    """One of the values as a square, in one of many ways."""
    x = rng.choice(values[-8:] if rng.random() < 0.7 else values)
    if x.numel() == N * N:
        x = x.reshape(N, N)
    elif x.numel() == N:
        x = x.reshape(-1, 1).expand(N, N) if rng.random() < 0.5 else x.expand(N, N)
    else:
        x = x.reshape(-1)[0].expand(N, N)
    return x.t() if rng.random() < 0.3 else x


def views(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    kind = rng.randrange(7)
    if kind == 0:
        return x.reshape(2, 3, N).transpose(0, 1).reshape(N, N)
    if kind == 1:
        return torch.cat([x[2:], x[:2]], 0)
    if kind == 2:
        return torch.cat(x.split([1, 3, 2], 1)[::-1], 1)
    if kind == 3:
        return x.flip(rng.randrange(2))
    if kind == 4:
        return torch.stack(x.unbind(0)[::-1], rng.randrange(2))
    if kind == 5:
        return x.reshape(-1)
    return x.reshape(3, 12).t().reshape(N, N)


def pieces(rng: random.Random, values: Values) -> torch.Tensor:
    """Computed values side by side: they are computed in their places."""
    half = [
        torch.tanh(square(rng, values))[: N // 2],
        (square(rng, values) @ square(rng, values)) / N,
    ]
    rng.shuffle(half)
    dim = rng.randrange(2)
    parts = [part[: N // 2] if dim == 0 else part.t()[: N // 2].t() for part in half]
    if dim == 1:
        parts = [part if part.shape[0] == N else torch.cat([part, part]) for part in parts]
    return torch.cat(parts, dim)


def step(rng: random.Random, values: Values) -> torch.Tensor:
    """One more value."""
    a, b = square(rng, values), square(rng, values)
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: a + b * 0.5,
        lambda: torch.tanh(a - b),
        lambda: a * torch.sigmoid(b),
        lambda: torch.where(a > b, a, b.exp().clamp(max=3)),
        lambda: (a @ b) / N,
        lambda: torch.relu(a @ b + b[0]) / N,
        lambda: torch.addmm(b[:, 0], a, b).tanh(),
        lambda: torch.bmm(a.reshape(2, 3, N), b.expand(2, N, N)).reshape(N, N) / N,
        lambda: a.sum(rng.randrange(2)) / N,
        lambda: a.amax(rng.randrange(2), keepdim=True).expand(N, N) - b,
        lambda: (a - a.mean(0)) / (a.var(0) + 1).sqrt(),
        lambda: a.softmax(rng.randrange(2)),
        lambda: a.mean() + b[1],
        lambda: views(rng, a),
        lambda: views(rng, a + b),
        lambda: pieces(rng, values),
        lambda: a[(b[0].abs() * 2).long().clamp(0, N - 1)],
        lambda: a.gather(1, (b.abs() * 2).long().clamp(0, N - 1)),
    ]
    return rng.choice(makers)()


def update(rng: random.Random, target: torch.Tensor, values: Values) -> None:
    """New content for an input, from the old one or not."""
    x = square(rng, values) + 0  # torch does not copy between parts of the same memory
    kind = rng.randrange(5)
    if kind == 0:
        target.sub_(x * 0.1)
    elif kind == 1:
        target.copy_(x)
    elif kind == 2:
        target.copy_((target.t() + x).tanh())
    elif kind == 3:
        target.copy_((target @ x) / N)
    else:
        target[1:4].mul_(0.5).add_(x[:3])


def program(seed: int, *inputs: torch.Tensor) -> list[torch.Tensor]:
    rng = random.Random(seed)
    state, values = list(inputs), [x.clone() if rng.random() < 0.2 else x for x in inputs]
    for _ in range(rng.randrange(4, 16)):
        values.append(step(rng, values))
        if rng.random() < 0.2:
            update(rng, rng.choice(state), values)
    for target in rng.sample(state, rng.randrange(len(state))):
        update(rng, target, values)
    chosen = rng.sample(values[len(inputs) :], min(3, len(values) - len(inputs)))
    return [x * 1.5 if rng.random() < 0.5 else x + 0 for x in chosen]


def random_case(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs = [torch.randn(N, N) for _ in range(4)]
    if seed % 3 == 0:
        inputs[1] = inputs[1].t()
    return Case(f"program {seed}", lambda *given: program(seed, *given), tuple(inputs))


@pytest.mark.parametrize("batch", range(3))
def test_random_programs_compute_what_torch_computes(batch):
    cases = taken(random_case(seed) for seed in range(batch * 8, batch * 8 + 8))
    assert len(cases) >= 5
    for case in cases[:1]:
        check([case], times=20)
    check(cases, times=20)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_random_programs_compute_what_torch_computes():
    for first in range(1000, 2000, 10):
        check(taken(random_case(seed) for seed in range(first, first + 10)), times=20)
