"""Sums, maxima and what is made of them, over random dims of random shapes and layouts."""

from __future__ import annotations

import random

import pytest
import torch
from tests.kernels.programs import Case, check, check_close, compiled, taken, why_refused

F = torch.nn.functional

SIZES = [1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 64, 70]


def random_tensor(rng: random.Random) -> torch.Tensor:
    """Dense, but with dims in any order in memory."""
    shape = [rng.choice(SIZES) for _ in range(rng.randrange(1, 5))]
    while torch.Size(shape).numel() > 20000:
        shape[rng.randrange(len(shape))] = rng.choice([1, 2, 3])
    torch.manual_seed(rng.randrange(1 << 30))
    order = rng.sample(range(len(shape)), len(shape))
    lying = torch.randn([shape[dim] for dim in order])
    return lying.permute([order.index(dim) for dim in range(len(shape))])


def some_dims(rng: random.Random, x: torch.Tensor) -> list[int]:
    dims = rng.sample(range(x.dim()), rng.randrange(1, x.dim() + 1))
    return [dim - x.dim() * rng.randrange(2) for dim in dims]


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    x = random_tensor(rng)
    dims, keep = some_dims(rng, x), bool(rng.randrange(2))
    last = rng.randrange(x.dim())
    kinds = {
        "sum": lambda x: x.sum(dims, keepdim=keep),
        "mean": lambda x: x.mean(dims, keepdim=keep),
        "amax": lambda x: x.amax(dims, keepdim=keep),
        "amin": lambda x: (x * 2).amin(dims, keepdim=keep),
        "var": lambda x: x.var(dims, correction=0, keepdim=keep),
        "softmax": lambda x: x.softmax(last),
        "log_softmax": lambda x: (x * 3).log_softmax(last),
        "after": lambda x: torch.relu(x.exp().sum(dims, keepdim=True) - 1) * x,
        "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "logsumexp": lambda x: x.logsumexp(dims, keepdim=keep),
        "of views": lambda x: x.reshape(-1, x.shape[-1]).t().sum(rng.randrange(1)) + 1,
        "all": lambda x: (x.sum(), x.mean(), x.amax(), (x > 0).sum(), x.norm()),
        "int": lambda x: ((x * 10).to(torch.int64).sum(dims), (x > 0).any(), (x < 9).all()),
        "double": lambda x: x.double().sum(dims, keepdim=keep),
        "argmax": lambda x: x.argmax(last),
        "cumsum": lambda x: x.cumsum(last),
    }
    kind = rng.choice(sorted(kinds))
    return Case(f"{seed} {kind} of {tuple(x.shape)} over {dims} {last}", kinds[kind], (x,))


@pytest.mark.parametrize("batch", range(3))
def test_reductions_of_random_shapes_are_as_good_as_torchs(batch):
    cases = taken(random_case(seed) for seed in range(batch * 30, batch * 30 + 30))
    assert len(cases) > 15
    check(cases, times=6)


def test_reductions_keep_nan_and_infinity():
    x = torch.randn(5, 40)
    x[0, 3], x[1, 39], x[2, 0], x[3, :] = float("nan"), float("inf"), float("-inf"), float("-inf")
    functions = [
        lambda x: x.sum(1),
        lambda x: x.amax(1),
        lambda x: x.amin(1),
        lambda x: x.amax(0),
        lambda x: x.amin(0),
        lambda x: x.softmax(1),
        lambda x: x.softmax(0),
        lambda x: x.t().amax(1),
    ]
    check([Case(f"odd {n}", function, (x,)) for n, function in enumerate(functions)])


def test_long_sums_are_as_good_as_torchs():
    rows, columns = torch.rand(20000, 5), torch.rand(5, 20000)
    check([Case("rows", lambda x: x.sum(0), (rows,)), Case("row", lambda x: x.sum(1), (columns,))])
    check([Case("all", lambda x: (x.sum(), (x * x).mean()), (torch.rand(300, 301),))])


def test_norms_with_gradients_are_as_good_as_torchs():
    def layer(x, w, b):
        return F.layer_norm(x, x.shape[-1:], w, b)

    def batch(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)

    def group(x, w, b):
        return F.group_norm(x, 3, w, b)

    cases = [
        with_gradients("layer", layer, (4, 7, 37), 37),
        with_gradients("batch", batch, (6, 5, 3, 7), 5),
        with_gradients("group", group, (4, 6, 5, 3), 6),
        with_gradients("batch of rows", batch, (33, 17), 17),
    ]
    for case in cases:
        assert why_refused(case) is None
    check(cases, times=6)


def with_gradients(name, function, shape, width):
    def call(x, w, b, g):
        with torch.enable_grad():
            y, backward = torch.func.vjp(function, x, w, b)
        return y, *backward(g)

    inputs = (torch.randn(shape) * 2 + 1, torch.rand(width), torch.rand(width), torch.randn(shape))
    return Case(name, call, inputs)


def test_runs_are_the_same_bit_for_bit():
    x = torch.randn(37, 129)
    program = compiled(lambda x: [x.sum(0), x.sum(1), x.softmax(1), x.var(), x.t() @ x], [x])
    for threads in (1, 2):
        first = program.run([x], threads).results
        for _ in range(5):
            again = program.run([x], threads).results
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    check_close(first[0], x.sum(0), x.double().sum(0), "sum")
