"""Every operator that computes element by element, for every type it takes, against torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.kernels.programs import Case, eager, exact, run_together, taken, why_refused

from pantile.lowering.kernels.pointwise import POINTWISE
from pantile.passes.philox import PHILOX

aten = torch.ops.aten
prims = torch.ops.prims

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, float("inf"), float("-inf"), float("nan")]
SPECIAL += [1e-40, -1e-42, 1e-30, 1e30, -1e30, 88.0, -103.0, 1e-7, 0.9999999, 2.0, 3.0]

TYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8]
TYPES += [torch.int8, torch.bool]

AS_BITS = {torch.float32: torch.int32, torch.int32: torch.float32, torch.int64: torch.float64}
AS_BITS |= {torch.uint8: torch.int8}

SHAPES = [((5, 17), (17,)), ((3, 1, 4), (2, 1)), ((33,), ()), ((1,), (1,)), ((2, 3), (2, 3))]


def values(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(rng.randrange(1 << 30))
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        least = 0 if dtype is torch.uint8 else -9
        return torch.randint(least, 10, shape, dtype=dtype)
    found = torch.randn(shape, dtype=dtype) * rng.choice([0.1, 1, 10])
    for _ in range(found.numel() // 2):
        found.view(-1)[rng.randrange(found.numel())] = rng.choice(SPECIAL)
    return found


def operators() -> list[Any]:
    """Torch's; our own are parts of other rules."""
    # The seed of a draw is one int64: test_philox_template.py has those.
    found = (op for op in POINTWISE if hasattr(op, "_schema") and op is not PHILOX)
    return sorted(found, key=str)


def arguments(rng: random.Random, target: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Tensors where the operator wants tensors, numbers where it wants numbers."""
    wide, narrow = rng.choice(SHAPES)
    for place, argument in enumerate(a for a in target._schema.arguments if not a.kwarg_only):
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            first_of_where = target is aten.where.self and place == 0
            own = torch.bool if first_of_where else dtype
            yield values(rng, narrow if place == 1 else wide, own)
        elif "number" in kind or "Scalar" in kind:
            if argument.name == "alpha":
                return
            yield rng.choice([2, 3, -1] if place else [2, 3])
        elif target is aten.view.dtype:
            yield AS_BITS.get(dtype)
        else:
            yield torch.float32 if target is prims.convert_element_type.default else None


def case_of(target: Any, dtype: torch.dtype, seed: int) -> Case | None:
    """A call of the operator that eager can do."""
    rng = random.Random(f"{target} {dtype} {seed}")
    given = list(arguments(rng, target, dtype))
    if target in (aten.sin.default, aten.cos.default):  # not meant for more than 1e13
        given = [x.clamp(-1e4, 1e4) if x.dtype.is_floating_point else x for x in given]
    tensors = [x for x in given if isinstance(x, torch.Tensor)]

    def call(*inputs: torch.Tensor) -> Any:
        rest = iter(inputs)
        return target(*(next(rest) if isinstance(x, torch.Tensor) else x for x in given))

    case = Case(f"{target} {dtype} {seed}", call, tuple(tensors))
    try:
        eager(case)
    except (RuntimeError, NotImplementedError):
        return None
    return case


def check_each(case: Case, ours: torch.Tensor, own: torch.Tensor, best: torch.Tensor) -> None:
    """Every element by itself: a few units in the last place, or a few times eager's error."""
    assert ours.dtype == own.dtype and ours.shape == own.shape, case.name
    if not own.dtype.is_floating_point:
        assert torch.equal(ours, own), (case.name, case.inputs, ours, own)
        return
    unit = torch.finfo(own.dtype).eps
    best = best.to(torch.float64)
    allowed = 4 * (own.double() - best).abs().nan_to_num(0.0) + 6 * unit * best.abs() + 1e-38
    fine = (ours.double() - best).abs() <= allowed
    fine |= (ours == own) | (ours.isnan() & own.isnan())
    if not fine.all():
        bad = ~fine
        seen = [x.expand(own.shape)[bad].tolist()[:4] for x in case.inputs]
        text = f"{case.name}: of {seen} ours {ours[bad][:4].tolist()} torch {own[bad][:4].tolist()}"
        raise AssertionError(text)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_operators_give_torchs_values_for_ordinary_and_odd_numbers(dtype):
    seeds = range(2) if dtype in (torch.float32, torch.int64) else range(1)
    found = [case_of(target, dtype, seed) for target in operators() for seed in seeds]
    known = [case for case in found if case is not None]
    cases = taken(known)
    assert len(cases) >= 0.9 * len(known)
    failures = []
    for case, ran in zip(cases, run_together(cases), strict=True):
        own, best = eager(case), exact(case)
        try:
            for results in zip(ran.results, own.results, best.results, strict=True):
                check_each(case, *results)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def test_there_is_code_for_every_operator_of_float32():
    missing = {}
    for target in operators():
        case = case_of(target, torch.float32, 0)
        if case is not None and (why := why_refused(case)) is not None:
            missing[str(target)] = why
    assert not missing
