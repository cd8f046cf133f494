"""Index algebra: random chains of views, computed by the index alone, against torch."""

from __future__ import annotations

import random
from functools import partial
from math import prod

import pytest
import torch
from tests.kernels.programs import graph_of

from pantile.lowering.kernels.expressions import RULES
from pantile.lowering.kernels.index import Affine, Axis, Index, Space, index_of
from pantile.lowering.kernels.radix import member_index, radix_of
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace


class NothingRealised:
    def is_realised(self, node):
        return False

    def buffer(self, node):
        return None

    def rule(self, target):
        return RULES.get(target)


def values_of_axes(space: Space, axes: list[Axis]) -> dict[Axis, torch.Tensor]:
    """Every leaf of the axes, for every element of a tensor with these axes."""
    found: dict[Axis, torch.Tensor] = {}

    def put(axis: Axis, value: torch.Tensor) -> None:
        found[axis] = value
        if axis in space.splits:
            outer, inner = space.splits[axis]
            put(outer, value // inner.size)
            put(inner, value % inner.size)

    shape = [axis.size for axis in axes]
    for dim, axis in enumerate(axes):
        line = torch.arange(axis.size).view([-1 if d == dim else 1 for d in range(len(shape))])
        put(axis, line.expand(shape))
    return found


def evaluated(part: Affine, values: dict[Axis, torch.Tensor], shape: list[int]) -> torch.Tensor:
    result = torch.full(shape, part.constant)
    for axis, factor in part.terms.items():
        result = result + values[axis] * factor
    return result


def places(space: Space, index: Index, axes: list[Axis], source: list[int]) -> torch.Tensor:
    """The number of the element of the source that each element of a view is."""
    values = values_of_axes(space, axes)
    shape = [axis.size for axis in axes]
    linear = torch.zeros(shape, dtype=torch.int64)
    for part, size in zip(index, source, strict=True):
        here = evaluated(space.resolve(part), values, shape)
        assert here.min() >= 0 and here.max() < size
        linear = linear * size + here
    return linear


def factors(rng: random.Random, number: int) -> list[int]:
    """A random shape of so many elements."""
    shape = []
    while number > 1:
        divisors = [d for d in range(2, number + 1) if number % d == 0]
        shape.append(rng.choice(divisors))
        number //= shape[-1]
    for _ in range(rng.randrange(3)):
        shape.insert(rng.randrange(len(shape) + 1), 1)
    rng.shuffle(shape)
    return shape


KINDS = [
    "reshape",
    "reshape",
    "permute",
    "permute",
    "expand",
    "squeeze",
    "slice",
    "select",
    "split",
    "flip",
    "repeat",
]


def random_view(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    kind = rng.choice(KINDS)
    dim = rng.randrange(-x.dim(), x.dim()) if x.dim() else 0
    if kind == "reshape":
        return x.reshape(factors(rng, x.numel()))
    if kind == "permute":
        dims = rng.sample(range(x.dim()), x.dim())
        return x.permute([d - x.dim() * rng.randrange(2) for d in dims])
    if kind == "squeeze":
        return x.squeeze() if rng.randrange(2) else x.unsqueeze(rng.randrange(-1, x.dim() + 1))
    if kind == "expand" and x.numel() < 200:
        more = [rng.choice([2, 3])] * rng.randrange(2)
        return x.expand([*more, *(rng.choice([n, 4]) if n == 1 else -1 for n in x.shape)])
    return random_part(rng, x, kind, dim)


def random_part(rng: random.Random, x: torch.Tensor, kind: str, dim: int) -> torch.Tensor:
    if x.dim() == 0:
        return x
    size = x.shape[dim]
    if kind == "slice":
        first = rng.randrange(size)
        taken = slice(first - size * rng.randrange(2), None, rng.choice([1, 1, 2, 3]))
        return x.movedim(dim, 0)[taken].movedim(0, dim)
    if kind == "select":
        return x.select(dim, rng.randrange(-size, size))
    if kind == "flip":
        return x.flip([dim])
    if kind == "repeat" and x.numel() < 100:
        return x.repeat([*([2] * rng.randrange(2)), *(rng.choice([1, 2]) for _ in x.shape)])
    if kind == "split":
        pieces = x.split(rng.randrange(1, size + 1), dim) if rng.randrange(2) else x.unbind(dim)
        return rng.choice(pieces)
    return x


def random_chain(state, length: int, x: torch.Tensor) -> torch.Tensor:
    """The same chain for the same state."""
    rng = random.Random()
    rng.setstate(state)
    for _ in range(length):
        x = random_view(rng, x)
    return x


def listed(function):
    return lambda x: [function(x)]


@pytest.mark.parametrize("batch", range(6))
def test_the_index_of_a_chain_of_views_finds_torchs_element_or_is_refused(batch):
    refused, total = 0, 40
    for seed in range(batch * total, (batch + 1) * total):
        rng = random.Random(seed)
        source = factors(rng, rng.choice([12, 24, 36, 60, 64, 7, 30]))
        chain = partial(random_chain, rng.getstate(), rng.randrange(1, 6))
        x = torch.arange(prod(source)).view(source)
        expected = chain(x)
        graph = graph_of(listed(chain), [x])
        result = list(graph.nodes)[-1].args[0][0]
        trace = Trace(NothingRealised(), probing=True)
        axes = [Axis(size) for size in expected.shape]
        try:
            trace.value(result, index_of(axes))
        except Refused:
            refused += 1
            continue
        (read,) = trace.reads
        if read.whole:  # divided when the kernel runs: random programs see to that
            refused += 1
            continue
        found = places(trace.space, read.index, axes, source)
        assert torch.equal(found, expected), f"seed {seed}"
    assert refused < total / 2


def test_quotient_and_remainder_are_those_of_the_number_or_are_refused():
    done = 0
    for seed in range(400):
        rng = random.Random(seed)
        axes = [Axis(rng.choice([1, 2, 3, 4, 6, 8])) for _ in range(rng.randrange(1, 4))]
        sum_ = Affine(rng.randrange(6))
        for axis in axes:
            sum_ += Affine.of(axis) * rng.choice([1, 2, 3, 4, 6, 12, 24])
        size = rng.choice([1, 2, 3, 4, 6, 8, 12, 24])
        space = Space()
        try:
            quotient, remainder = space.divmod(sum_, size)
        except Refused:
            continue
        done += 1
        shape = [axis.size for axis in axes]
        values = values_of_axes(space, axes)
        number = evaluated(sum_, values, shape)
        assert torch.equal(evaluated(space.resolve(quotient), values, shape), number // size)
        assert torch.equal(evaluated(space.resolve(remainder), values, shape), number % size)
    assert done > 100


def test_the_radix_of_a_value_leads_back_to_the_element_it_came_from():
    done = 0
    for seed in range(300):
        rng = random.Random(seed)
        shape = factors(rng, rng.choice([12, 24, 36, 7]))
        axes = [Axis(size) for size in shape]
        order = rng.sample(range(len(shape)), len(shape))
        anchor = [shape[dim] for dim in order]
        space = Space()
        index = tuple(index_of(axes)[dim] for dim in order)
        merged = factors(rng, prod(shape))
        try:
            index = space.resolved(space.reshape(index, anchor, merged))
        except Refused:
            continue
        radix = radix_of(index, merged, axes)
        if radix is None:
            continue
        done += 1
        there = places(space, index, axes, merged)
        own = [Axis(size) for size in merged]
        back = Space()
        member = member_index(back, radix, own, shape)
        here = places(back, member, own, shape)
        assert torch.equal(there.flatten()[here.flatten()], torch.arange(prod(shape)))
    assert done > 50
