"""Concatenations, pieces, results that are views, and parameters that are written in place."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check, why_refused


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def transposed_update(p):
    p.copy_(p.t() + 1)
    return p.sum()


def shifted_update(p, g):
    p[1:].add_(p[:-1] * 0.5)
    return (p @ g).sum()


def crossed_updates(p, q):
    a, b = p + q.t(), q * 2 - p
    p.copy_(b)
    q.copy_(a)
    return (a * b).sum()


def read_after_update(p, g, x):
    before = x @ p
    p.sub_(g * 0.1)
    return before, x @ p


def read_late(p, x):
    """The old content is needed by a kernel behind the one that makes the new one."""
    new = p - 0.1 * (x.t() @ x)
    y = torch.tanh(x @ p)
    z = (y @ p.t()).exp()
    p.copy_(new)
    return z


def momentum(p, m, x, g):
    gradient = x.t() @ g
    m.mul_(0.9).add_(gradient)
    p.sub_(0.1 * m)
    return (p * m).sum()


def adam(p, m, v, step, x, g):
    gradient = x.t() @ g
    step.add_(1)
    m.lerp_(gradient, 0.1)
    v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    corrected = v.sqrt() / (1 - 0.99**step).sqrt() + 1e-8
    p.addcdiv_(m / (1 - 0.9**step), corrected, value=-0.01)
    return p.sum()


def written_and_returned(b, x):
    new = b * 0.9 + x.mean(0) * 0.1
    b.copy_(new)
    return new, new * 2


def returned_twice(x, w):
    y = torch.relu(x @ w)
    return y, y, y.t(), y.view(-1), y[1:3], y.unsqueeze(0)


def one_source_for_two(p, q, x):
    new = (x @ p).sigmoid()
    p.copy_(new)
    q.copy_(new)
    return new.sum()


def update_from_pieces(p, x, w):
    """A piece of the new content is there before the old one is read for the last time."""
    a = x @ w
    b = torch.tanh(x @ p)
    c = b @ p.t()
    p.copy_(torch.cat([a[:2], (b + c)[:3]]))
    return c.sum()


def update_by_cat(p, x, w):
    a = torch.relu(x @ w)
    b = torch.relu(a @ p)
    p.copy_(torch.cat([a, b]))
    return b.sum()


def update_by_cat_of_kernels(p, x, w):
    """Both pieces are products: they lie where the parameter will be, and it is read between."""
    a = x @ w
    b = a @ p
    p.copy_(torch.cat([a, b], 0))
    return (a + b).sum()


def update_by_product(p, x):
    p.copy_(x @ x.t())
    return x.sum()


def update_by_own_product(p, x):
    p.copy_(p @ x)
    return x.sum()


def update_by_sum(p, x):
    p.copy_(x.sum(0))
    return (p * 2).sum()


def running_statistics(mean, var, count, x):
    mean.lerp_(x.mean(0), 0.1)
    var.lerp_(x.var(0), 0.1)
    count.add_(1)
    return (x - mean) / (var + 1e-5).sqrt()


UPDATES = [
    Case("transposed", transposed_update, (randn(7, 7),)),
    Case("shifted", shifted_update, (randn(6, 5), randn(5, 3))),
    Case("crossed", crossed_updates, (randn(6, 6), randn(6, 6))),
    Case("read after", read_after_update, (randn(5, 4), randn(5, 4), randn(3, 5))),
    Case("read late", read_late, (randn(9, 9), randn(9, 9))),
    Case("momentum", momentum, (randn(8, 19), randn(8, 19), randn(33, 8), randn(33, 19))),
    Case(
        "adam",
        adam,
        (
            randn(8, 19),
            randn(8, 19),
            randn(8, 19).abs(),
            torch.tensor(3.0),
            randn(5, 8),
            randn(5, 19),
        ),
    ),
    Case("written and returned", written_and_returned, (randn(6), randn(4, 6))),
    Case("one source for two", one_source_for_two, (randn(5, 5), randn(5, 5), randn(5, 5))),
    Case("from pieces", update_from_pieces, (randn(5, 5), randn(5, 5), randn(5, 5))),
    Case("by cat", update_by_cat, (randn(6, 6), randn(3, 6), randn(6, 6))),
    Case("by cat of kernels", update_by_cat_of_kernels, (randn(6, 6), randn(3, 6), randn(6, 6))),
    Case("by product", update_by_product, (randn(5, 5), randn(5, 5))),
    Case("by own product", update_by_own_product, (randn(5, 5), randn(5, 5))),
    Case("by sum", update_by_sum, (randn(17), randn(9, 17))),
    Case(
        "transposed memory", momentum, (randn(19, 8).t(), randn(8, 19), randn(5, 8), randn(5, 19))
    ),
    Case(
        "statistics",
        running_statistics,
        (randn(6), randn(6).abs(), torch.tensor(4), randn(9, 6)),
    ),
]


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name.replace(" ", "-"))
def test_an_update_in_place_is_not_refused(case):
    assert why_refused(case) is None


def test_updates_in_place_give_what_torch_gives():
    check([case for case in UPDATES if why_refused(case) is None])


def pieces_of_products(x, w, v):
    y = torch.cat([x @ w, torch.relu(x @ v), x], 1)
    return y * 2, y[:, 3:11], y.split(4, 1)[1] + 1


def stack(x, y):
    return torch.stack([x, y * 2, x + y], 1), torch.stack([x.sum(0), y.amax(0)])


def nested(x, y):
    inner = torch.cat([x * 2, y], 1)
    outer = torch.cat([inner, torch.cat([y.tanh(), x.exp()], 1)], 0)
    return outer.sum(1), outer.t().reshape(-1)


def same_piece_twice(x, w):
    y = torch.tanh(x @ w)
    return torch.cat([y, y, y.t()[:, :4].t()], 0) + 1, torch.cat([y.unsqueeze(0), y[None] * 2])


def chunks(x):
    a, b, c = x.chunk(3, -1)
    q, k, v = (part.view(2, 5, 2, 3).transpose(1, 2) for part in (a, b, c))
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def unbound(x, w):
    parts = (x @ w).view(4, 3, 5).unbind(1)
    return torch.stack(parts[::-1], 2), parts[0] * parts[2] + parts[1]


def mixed_types(x, n):
    return torch.cat([x, n.to(torch.float32)]), torch.cat([n, n * 2 > 3]), x.double().sum()


def with_pad(x):
    return torch.nn.functional.pad(x, (1, 2, 0, 3)), torch.nn.functional.pad(x, (-1, 2))


def rolled(x):
    return x.roll(2, 1), x.flip(0), x.repeat(2, 3), x.repeat_interleave(2, 0)


def written_part(x, y):
    z = x.clone()
    z[1:4, 2] = y[:3, 0]
    z[:, 0] += 1
    z[0].mul_(2)
    return z, z.t() @ z


VIEWS = [
    Case("pieces of products", pieces_of_products, (randn(5, 6), randn(6, 7), randn(6, 3))),
    Case("stack", stack, (randn(4, 9), randn(4, 9))),
    Case("nested", nested, (randn(4, 9), randn(4, 5))),
    Case("same piece twice", same_piece_twice, (randn(5, 6), randn(6, 7))),
    Case("chunks", chunks, (randn(2, 5, 18),)),
    Case("unbound", unbound, (randn(4, 6), randn(6, 15))),
    Case("mixed types", mixed_types, (randn(5), torch.arange(4))),
    Case("returned twice", returned_twice, (randn(5, 6), randn(6, 7))),
    Case("pad", with_pad, (randn(4, 9),)),
    Case("rolled", rolled, (randn(4, 9),)),
    Case("written part", written_part, (randn(5, 4), randn(5, 4))),
]


def test_pieces_and_views_of_results_are_torchs():
    check([case for case in VIEWS if why_refused(case) is None])
