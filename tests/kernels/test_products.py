"""Matrix products of operands that lie in any way, with what follows, against torch."""

from __future__ import annotations

import random

import pytest
import torch
from tests.kernels.programs import Case, check, compiled, taken

from pantile.lowering.kernels.refused import Refused


def lying(rng: random.Random, rows: int, columns: int, *batch: int) -> torch.Tensor:
    """A matrix (or a batch) that lies row by row, column by column, or in a larger one."""
    torch.manual_seed(rng.randrange(1 << 30))
    kind = rng.randrange(4)
    if kind == 0:
        return torch.randn(*batch, rows, columns)
    if kind == 1:
        return torch.randn(*batch, columns, rows).transpose(-2, -1)
    if kind == 2:
        return torch.randn(rows, *batch, columns).movedim(0, -2)
    return torch.randn(columns, *batch, rows).movedim(0, -1).contiguous().movedim(-2, -2)


def size(rng: random.Random) -> int:
    return rng.choice([1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70])


def after(rng: random.Random, y: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Something that is computed from the elements of a product."""
    kind = rng.randrange(9)
    if kind == 0:
        return (torch.relu(y + c[0]),)
    if kind == 1:
        return y, torch.nn.functional.gelu(y)
    if kind == 2:
        return (y.t() * 2 - c.t() if y.dim() == 2 else y.transpose(1, 2) + 1,)
    if kind == 3:
        return y.sigmoid() * c, y.sum(-1)
    if kind == 4:
        return (y.reshape(-1) + 1,)
    if kind == 5:
        return (y.unsqueeze(0).expand(2, *y.shape) * torch.ones(2, *([1] * y.dim())),)
    if kind == 6:
        return (y - c * 0.1, y * c, y.tanh())
    if kind == 7:
        return (torch.softmax(y + c, -1),)
    return (y.flatten(0, -2).t().contiguous(),)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    m, n, k = size(rng), size(rng), size(rng)
    batch = [rng.choice([1, 2, 3, 6])] if rng.randrange(3) == 0 else []
    a, b = lying(rng, m, k, *batch), lying(rng, k, n, *batch)
    c = lying(rng, m, n, *batch)
    state = rng.getstate()
    kind = rng.choice(["plain", "plain", "added", "view", "computed"])

    def call(a, b, c):
        rng.setstate(state)
        if kind == "computed":
            a, b = torch.tanh(a), b * 2 + 1
        if kind == "view":
            a = a.transpose(-1, -2).contiguous().reshape(*batch, k, m).transpose(-1, -2)
        if kind == "added":
            y = torch.addmm(c[0], a, b) if not batch else torch.baddbmm(c, a, b)
        else:
            y = a @ b
        return after(rng, y, c)

    return Case(f"{seed} {kind} {m}x{n}x{k} of {batch}", call, (a, b, c))


@pytest.mark.parametrize("batch", range(3))
def test_products_of_random_sizes_are_as_good_as_torchs(batch):
    cases = taken(random_case(seed) for seed in range(batch * 14, batch * 14 + 14))
    assert len(cases) >= 12
    check(cases)


def test_products_of_views_are_as_good_as_torchs():
    x, w = torch.randn(6, 10, 24), torch.randn(24, 36)
    cases = [
        Case("slices", lambda x, w: x[1:4, 2:9, 3:19] @ w[3:19, ::2], (x, w)),
        Case("heads", heads, (x, torch.randn(24, 72))),
        Case("merged", lambda x, w: x.permute(1, 0, 2).reshape(60, 24) @ w, (x, w)),
        Case("broken", lambda x, w: x.permute(2, 0, 1).reshape(24, 60).t() @ w, (x, w)),
        Case("expanded", lambda x, w: x[0, 0].expand(5, 24) @ w, (x, w)),
        Case("selected", lambda x, w: x[:, 3] @ w + x[:, 4] @ w, (x, w)),
        Case("self", lambda x, w: x[0].t() @ x[0], (x, w)),
        Case("vector", lambda x, w: (x[0] @ w[:, 1], w.t() @ x[0, 0]), (x, w)),
        Case("outer", lambda x, w: torch.outer(x[0, 0], w[0]), (x, w)),
        Case("flipped", lambda x, w: x[0].flip(0) @ w.flip(1), (x, w)),
        Case("repeated", lambda x, w: x[0].repeat(3, 1) @ w, (x, w)),
    ]
    check(taken(cases))
    assert len(taken(cases)) >= 10


def heads(x, w):
    q, k, v = (x @ w).split(24, 2)
    q, k, v = (part.view(6, 10, 3, 8).transpose(1, 2) for part in (q, k, v))
    mixed = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
    return mixed.transpose(1, 2).reshape(6, 10, 24)


def test_nan_and_infinity_go_where_they_go_in_torch():
    a, b = torch.randn(9, 20), torch.randn(20, 19)
    a[2, 3], a[4, 5], b[7, 18] = float("nan"), float("inf"), float("-inf")
    check([Case("odd", lambda a, b: a @ b, (a, b))])


def test_products_of_other_types_are_refused():
    with pytest.raises(Refused):
        compiled(lambda a: a @ a, [torch.randn(4, 4).double()])
