"""bfloat16 and float16: each family of kernels against float64, from the same numbers of 16 bits.

A single operator is at most one unit in the last place off; sums are as good as eager's, which adds
in float32, too. A chain of operators rounds where eager rounds, so it gives the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.programs import Case, check, compiled, eager, exact, run_together, taken
from tests.kernels.test_other_cpus import cases as narrow_cases
from tests.kernels.test_other_cpus import gradients
from tests.kernels.test_pointwise import case_of, operators

HALVES = [torch.bfloat16, torch.float16]
aten = torch.ops.aten


def halved(case: Case, dtype: torch.dtype) -> Case:
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in case.inputs)
    return Case(f"{case.name} {dtype}", case.function, inputs)


def units(ours: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """The distance from the number in float64, in units of the last place of the type of `ours`."""
    facts = torch.finfo(ours.dtype)
    _, exponent = torch.frexp(best)
    least = torch.ldexp(torch.ones_like(best), exponent - 1).clamp(min=facts.smallest_normal)
    return (ours.double() - best).abs() / (least * facts.eps)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_an_operator_is_at_most_one_unit_in_the_last_place_off(dtype):
    known = [case for op in operators() if (case := case_of(op, dtype, 0)) is not None]
    cases = taken(known)
    assert len(cases) >= 0.9 * len(known)
    for case, ran in zip(cases, run_together(cases), strict=True):
        own, best = eager(case), exact(case)
        for ours, torchs, right in zip(ran.results, own.results, best.results, strict=True):
            assert ours.dtype is torchs.dtype, case.name
            if ours.dtype not in HALVES:
                assert torch.equal(ours.nan_to_num(7.0), torchs.nan_to_num(7.0)), case.name
                continue
            fine = (ours == torchs) | (ours.isnan() & torchs.isnan()) | (units(ours, right) <= 1)
            given = [x.expand(ours.shape)[~fine].tolist()[:4] for x in case.inputs]
            assert fine.all(), (case.name, given, ours[~fine][:4], torchs[~fine][:4])


def chain(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Each line rounds; a single rounding at the end would give other bits."""
    a = (x + y) * x - y
    b = torch.where(a > 0.1, a * 0.3, a / 3 + 0.7).clamp(-0.9, 1.1)
    c = (0.3 - b).abs().sqrt().mul(b).add(x, alpha=0.5)
    return [a, b, c, torch.maximum(c, y) - a, (c * 7 == a).to(x.dtype) + c]


def casts(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.bool)
    wide = x.float() * 1.01
    narrow = [wide.to(dtype) for dtype in types]
    return [*narrow, *(n.to(dtype) for dtype in HALVES), wide.half().bfloat16() + 1, x.double() + 1]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_chain_of_operators_rounds_where_eager_does(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(37, 53).to(dtype), torch.randn(53).to(dtype)
    whole = torch.randint(-5000, 5000, (37, 53))
    cases = [Case("chain", chain, (x, y)), Case("casts", casts, (x, whole))]

    for case, ran in zip(cases, run_together(cases), strict=True):
        for place, (ours, own) in enumerate(zip(ran.results, eager(case).results, strict=True)):
            assert torch.equal(ours, own), (case.name, place)


def attention(**options: Any) -> Callable[..., Any]:
    return gradients(lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **options))


def lstm(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(1, x.shape[1], weights[1].shape[1])
    options = (True, 1, 0.0, True, False, False)
    return torch.lstm(x, (state, state), list(weights), *options)[0]


def products(rng: random.Random) -> list[Case]:
    found = []
    for m, n, k in [
        (1, 70, 48),
        (16, 10, 128),
        (67, 65, 300),
        (5, 1, 33),
        (3, 130, 19),
        (130, 9, 40),
    ]:
        a, b = torch.randn(m, k), torch.randn(k, n)
        a = a.t().contiguous().t() if rng.randrange(2) else a
        b = b.t().contiguous().t() if rng.randrange(2) else b
        found.append(Case(f"product {m} {n} {k}", gradients(torch.mm), (a, b)))
    x, w, bias = torch.randn(7, 19, 33), torch.randn(21, 33), torch.randn(21)
    batch = (torch.randn(5, 18, 33), torch.randn(5, 33, 17))
    return [
        *found,
        Case("linear", gradients(lambda x, w, b: F.relu(F.linear(x, w, b))), (x, w, bias)),
        Case("batched", gradients(torch.bmm), batch),
        Case("scaled", lambda c, a, b: torch.addmm(c, a, b, alpha=0.3, beta=0.7),
             (torch.randn(17), torch.randn(9, 12), torch.randn(12, 17))),
    ]  # fmt: skip


def pieces(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.cat([x, x * 3], 1), F.pad(x, (1, 2)), x[:, 3:9].exp()]


def networks() -> list[Case]:
    """What models are made of, forward and backward."""
    rows, images = torch.randn(13, 37), torch.randn(3, 6, 11, 9)
    heads = tuple(torch.randn(2, 3, 19, 16) for _ in range(3))
    places, added = torch.randint(0, 5, (40,)), torch.randn(40, 37)
    batch_norm = gradients(lambda x: F.batch_norm(x, None, None, training=True))
    weights = (torch.randn(24, 5) / 3, torch.randn(24, 6) / 3, torch.randn(24), torch.randn(24))
    norm = gradients(lambda x, w, b: F.group_norm(x, 3, w, b))
    turned = gradients(lambda x, w: F.conv_transpose2d(x, w, stride=2))
    grouped = gradients(lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2))
    return [
        Case("attention", attention(is_causal=True), heads),
        Case("masked attention", attention(), (*heads, torch.ones(19, 19).tril() > 0)),
        Case("group norm", norm, (images, torch.randn(6), torch.randn(6))),
        Case("batch norm", batch_norm, (images,)),
        Case("rms norm", gradients(lambda x: F.rms_norm(x, (37,))), (rows,)),
        Case("log softmax", gradients(lambda x: F.log_softmax(x, 1)), (rows,)),
        Case("mean square", gradients(lambda x: F.mse_loss(x, x * 0.5)), (rows,)),
        Case("sums", lambda x: [x.sum(), x.mean(0), x.prod(1), x.std(1), x.logsumexp(0)], (rows,)),
        Case("grouped", grouped, (images, torch.randn(8, 3, 3, 3), torch.randn(8))),
        Case("transposed", turned, (images, torch.randn(6, 4, 3, 3))),
        Case("of one dim", gradients(F.conv1d), (torch.randn(2, 5, 19), torch.randn(7, 5, 3))),
        Case("larger", gradients(lambda x: F.interpolate(x, scale_factor=2.0)), (images,)),
        Case("pieces", pieces, (rows,)),
        Case("at places", lambda x, y, i: x.index_add(0, i, y), (rows[:5], added, places)),
        Case("recurrent", gradients(lstm), (torch.randn(4, 3, 5), *weights)),
    ]  # fmt: skip


def all_cases(dtype: torch.dtype) -> list[Case]:
    torch.manual_seed(1)
    rng = random.Random(str(dtype))
    return [halved(case, dtype) for case in [*narrow_cases(), *products(rng), *networks()]]


SLOWER = pytest.param(torch.float16, marks=pytest.mark.slow)


@pytest.mark.parametrize("dtype", [torch.bfloat16, SLOWER], ids=str)
def test_what_networks_are_made_of_is_as_good_as_eager(dtype):
    cases = all_cases(dtype)

    assert [case.name for case in taken(cases)] == [case.name for case in cases]
    check(cases, times=1.5)


def test_every_family_works_on_narrower_vectors(monkeypatch):
    monkeypatch.setenv("PANTILE_CPU", "x86-64-v3")
    torch.manual_seed(2)

    check([halved(case, torch.float16) for case in narrow_cases()], times=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_all_cases_work_on_narrower_vectors(dtype, target, monkeypatch):
    monkeypatch.setenv("PANTILE_CPU", target)

    check(all_cases(dtype), times=1.5)


def test_sums_at_equal_places_are_rounded_once():
    """3000 times 1: eager, which rounds after every addition, would stay at 256."""
    table, places = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3000, dtype=torch.int64)
    rows = torch.ones(3000, 3, dtype=torch.bfloat16)

    program = compiled(lambda t, i, r: t.index_put((i,), r, accumulate=True), (table, places, rows))

    (result,) = program.run((table, places, rows)).results
    assert result.tolist() == [[3008.0] * 3, [0.0] * 3]  # 3000 is 187.5 times 16


def test_a_half_as_an_operand_of_float32_is_not_rounded_again():
    """Under autocast products of bfloat16 meet float32: what was never rounded stays."""
    torch.manual_seed(3)
    x, w, z = torch.randn(9, 20), torch.randn(20, 11).bfloat16(), torch.randn(9, 11)

    def mixed(x, w, z):
        y = x.to(w.dtype) @ w
        return y, y + z, y.to(z.dtype) @ z.t(), (y * z).sum(1)

    check([Case("mixed", mixed, (x, w, z))], times=1.5)
