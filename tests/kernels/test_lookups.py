"""Values at computed places: embeddings, gathers, indexing, and sums at places; bad places too."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check, compiled, taken, why_refused

from pantile.errors import ExecutionError

F = torch.nn.functional


def places(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, shape)


def with_gradient(function, table: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y, backward = torch.func.vjp(lambda table: function(table, *rest), table)
    return y, *backward(torch.cos(y))


def cross_entropy(x, target, **options):
    with torch.enable_grad():
        y, backward = torch.func.vjp(lambda x: F.cross_entropy(x, target, **options), x)
    return y, *backward(torch.ones_like(y))


def lookup_of_itself(x):
    """The places are computed from the very values that are looked up."""
    y = torch.tanh(x)
    where = (y.abs() * 4).long()
    return y, y.gather(1, where) * 2, y[where[:, 0]] + y


def lookup_of_a_product(x, w):
    y = x @ w
    where = (y.abs() * 2).long().clamp(0, y.shape[1] - 1)
    return y.gather(1, where) + y, torch.relu(y)


def cases() -> list[Case]:
    table, x = torch.randn(11, 7), torch.randn(5, 9)
    some = places(9, 5)
    some[2] = -100
    return [
        Case("embedding", lambda t, i: F.embedding(i, t), (table, places(11, 3, 4))),
        Case("embedding of int32", lambda t, i: F.embedding(i.int(), t), (table, places(11, 3))),
        Case(
            "gradient",
            lambda t, i: with_gradient(lambda t, i: F.embedding(i, t), t, i),
            (table, places(11, 6, 5)),
        ),
        Case(
            "padded gradient",
            lambda t, i: with_gradient(lambda t, i: F.embedding(i, t, padding_idx=3), t, i),
            (table, places(4, 6, 5)),
        ),
        Case("gather", lambda x, i: x.gather(1, i), (x, places(9, 5, 3))),
        Case("gather of fewer", lambda x, i: x.exp().gather(0, i), (x, places(5, 2, 4))),
        Case("gather of a view", lambda x, i: x.t().gather(0, i), (x, places(9, 3, 5))),
        Case("rows", lambda x, i: x[i], (x, places(5, 4))),
        Case("negative rows", lambda x, i: x[i - 5], (x, places(5, 4))),
        Case("columns", lambda x, i: (x * 2)[:, i], (x, places(9, 2, 3))),
        Case("pairs", lambda x, i: x[i, i], (x, places(5, 4))),
        Case("of a view", lambda x, i: x.t()[i], (x, places(9, 4))),
        Case("of itself", lookup_of_itself, (x,)),
        Case("of a product", lookup_of_a_product, (x, torch.randn(9, 17))),
        Case("one hot", lambda i: F.one_hot(i, 6), (places(6, 4),)),
        Case("index select", lambda x, i: x.index_select(1, i), (x, places(9, 4))),
        Case("cross entropy", cross_entropy, (x, places(9, 5))),
        Case("ignored", cross_entropy, (x, some)),
        Case("sums", lambda x, i: cross_entropy(x, i, reduction="sum"), (x, some)),
        Case("smooth", lambda x, i: cross_entropy(x, i, label_smoothing=0.1), (x, places(9, 5))),
        Case("pictures", cross_entropy, (torch.randn(2, 4, 3, 5), places(4, 2, 3, 5))),
        Case(
            "index put", lambda x, i: x.index_put((i,), x[:4] * 2), (x, torch.tensor([3, 0, 1, 4]))
        ),
        Case("index add", lambda x, i: x.index_add(0, i, x[:4]), (x, places(5, 4))),
        Case("scatter add", lambda x, i: x.scatter_add(1, i, x * 2), (x, places(9, 5, 9))),
        Case("scatter", lambda x, i: x.scatter(1, i, 2.0), (x, places(9, 5, 1))),
        Case(
            "last of equal",
            lambda t, i: F.embedding(i, t) * 2 + t[:3, None],
            (table, places(11, 3, 4)),
        ),
        Case("iota", lambda x: torch.arange(0, 10 * 10**9, 10**9) + x.sum().long() * 0, (x,)),
    ]


NEEDED = {"embedding", "gradient", "padded gradient", "gather", "cross entropy", "of itself"}


def test_lookups_give_what_torch_gives():
    found = taken(cases())
    assert {case.name for case in found} >= NEEDED
    check(found)


WRONG = {
    "embedding": (lambda t, i: F.embedding(i, t), 11),
    "negative embedding": (lambda t, i: F.embedding(i, t), -1),
    "gather": (lambda t, i: t.gather(0, i.view(-1, 1)), 11),
    "negative gather": (lambda t, i: t.gather(0, i.view(-1, 1)), -1),
    "rows": (lambda t, i: t[i], 11),
    "negative rows": (lambda t, i: t[i], -12),
    "far": (lambda t, i: F.embedding(i, t), 1 << 40),
    "farthest": (lambda t, i: F.embedding(i, t), (1 << 63) - 1),
    "far below": (lambda t, i: F.embedding(i, t), -(1 << 63)),
    "class": (lambda t, i: F.cross_entropy(t.t()[:4], i), 11),
    "scatter": (lambda t, i: t.scatter(0, i[:1].view(1, 1).expand(1, 7), 2.0), 11),
    "gradient": (lambda t, i: with_gradient(lambda t, i: F.embedding(i, t), t, i), 11),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_place_outside_is_an_error_and_nothing_is_written(name):
    function, place = WRONG[name]
    table, good = torch.randn(11, 7), torch.tensor([0, 5, 10, 3])

    def step(table, i, p):
        result = function(table, i)
        value = result if isinstance(result, torch.Tensor) else result[0]
        p.add_(value.sum())
        return p * 2

    case = Case(name, step, (table, good, torch.zeros(())))
    assert why_refused(case) is None
    program = compiled(step, case.inputs)
    for threads in (1, 2):
        program.run(case.inputs, threads)
        bad, p = good.clone(), torch.zeros(())
        bad[0] = place
        with pytest.raises(ExecutionError, match="index out of bounds"):
            program.run((table, bad, p), threads)
        program.forgive()
        program.run(case.inputs, threads)


@pytest.mark.parametrize("row", [0, 17, 36])
def test_one_label_of_a_vector_of_them_is_found_to_be_outside(row):
    def step(logits, labels):
        with torch.enable_grad():
            loss, backward = torch.func.vjp(lambda x: F.cross_entropy(x, labels), logits)
        return loss, *backward(torch.ones(()))

    given = torch.randn(37, 10), torch.randint(10, (37,))
    program = compiled(step, given)
    labels = given[1].clone()
    labels[row] = 10
    for threads in (1, 2):
        program.run(given, threads)
        with pytest.raises(ExecutionError, match="index out of bounds"):
            program.run((given[0], labels), threads)
        program.forgive()
