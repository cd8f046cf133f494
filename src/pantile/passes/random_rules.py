"""Random ops as functions of counter-based numbers (see random_bits.py).

A rule is given a `Draw`, with the arguments of the op by name, and returns what the op returns;
the caller rounds the results to the types of the op's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.passes.formula import Formulas, Operand, Term
from pantile.passes.random_bits import MOST_INTEGERS, RandomBits

aten = torch.ops.aten

_EVERY_INTEGER = {
    torch.bool: 2,
    torch.uint8: 2**8,
    torch.int8: 2**7,
    torch.int16: 2**15,
    torch.int32: 2**31,
    torch.int64: MOST_INTEGERS,
    torch.float16: 2**11 + 1,
    torch.bfloat16: 2**8 + 1,
    torch.float32: 2**24 + 1,
    torch.float64: 2**53 + 1,
}
"""How many integers `Tensor.random_()` chooses from: all that are not negative."""


@dataclass(frozen=True)
class Draw:
    """One random op: its arguments, its (first) result, and where its numbers come from."""

    formulas: Formulas
    seed: fx.Node
    given: Mapping[str, Any]
    result: torch.Tensor

    def number(self, name: str) -> float:
        """An argument that is a number."""
        value: float = self.given[name]
        return value

    def tensor(self, name: str) -> Term:
        """An argument that is a tensor."""
        value: Term = self.given[name]
        return value

    @property
    def computed(self) -> torch.dtype:
        """The floating type to compute in."""
        return torch.float64 if self.result.dtype is torch.float64 else torch.float32

    def bits(self, like: torch.Tensor | None = None) -> RandomBits:
        """The random numbers, one for each element of the result or of another tensor."""
        return RandomBits(self.formulas, self.seed, self.result if like is None else like)

    def wide(self, name: str) -> Operand:
        """An argument, in the type to compute in if it is a tensor."""
        value: Operand = self.given[name]
        return value.to(self.computed) if isinstance(value, Term) else value


def _bernoulli(draw: Draw) -> Term:
    p = draw.given.get("p", draw.given["self"])
    op = aten.lt.Tensor if isinstance(p, Term) else aten.lt.Scalar
    return draw.bits().uniform().call(op, p)


def _native_dropout(draw: Draw) -> tuple[Term, Term]:
    x, p = draw.tensor("input"), draw.number("p")
    if draw.given["train"] is False:
        return x, x.call(aten.ones_like.default, dtype=torch.bool)
    kept = draw.bits().uniform().call(aten.ge.Scalar, p)
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _rand(draw: Draw) -> Term:
    return draw.bits().uniform(draw.result.dtype)


def _uniform(draw: Draw) -> Term:
    low, high = draw.number("from"), draw.number("to")
    return draw.bits().uniform(draw.computed) * (high - low) + low


def _randn(draw: Draw) -> Term:
    return draw.bits().normal(draw.computed)


def _normal(draw: Draw) -> Term:
    return draw.bits().normal(draw.computed) * draw.wide("std") + draw.wide("mean")


def _log_normal(draw: Draw) -> Term:
    return _normal(draw).call(aten.exp.default)


def _exponential(draw: Draw) -> Term:
    return draw.bits().exponential(draw.computed) / draw.number("lambd")


def _cauchy(draw: Draw) -> Term:
    angle = (draw.bits().uniform(draw.computed) - 0.5) * math.pi
    return angle.call(aten.tan.default) * draw.number("sigma") + draw.number("median")


def _geometric(draw: Draw) -> Term:
    trials = draw.bits().exponential(torch.float64) / -math.log1p(-draw.number("p"))
    return trials.call(aten.ceil.default)


def _randint(draw: Draw) -> Term:
    low: int = draw.given.get("low", 0)
    return draw.bits().integers(draw.given["high"] - low) + low


def _random(draw: Draw) -> Term:
    low: int = draw.given.get("from", 0)
    high: int | None = draw.given.get("to")
    end = _EVERY_INTEGER[draw.result.dtype] if high is None else high
    return draw.bits().integers(end - low) + low


def _randperm(draw: Draw) -> Term:
    return draw.bits().integers(MOST_INTEGERS).part(aten.sort.default, 1)


def _multinomial(draw: Draw) -> Term:
    given = draw.tensor("self")
    odds = given.to(torch.promote_types(given.dtype, torch.float32))
    value = odds.node.meta["val"]
    count = draw.given["num_samples"]
    if not draw.given["replacement"] or count == 1:
        # A race of clocks: the first to ring is drawn with its rate as odds, and so on.
        race = odds / draw.bits(value).exponential(odds.dtype)
        return race.part(aten.topk.default, 1, count)
    last = value.shape[-1] - 1
    sums = odds.to(torch.float64).call(aten.cumsum.default, -1)
    total = sums.call(aten.slice.Tensor, -1, last, last + 1)
    places = total * draw.bits().uniform(torch.float64)
    found = sums.call(aten.searchsorted.Tensor, places, right=True)
    return found.call(aten.clamp.default, None, last)


def _rrelu(draw: Draw) -> tuple[Term, Term]:
    x, low, high = draw.tensor("self"), draw.number("lower"), draw.number("upper")
    if not draw.given["training"]:
        return x.call(aten.leaky_relu.default, (low + high) / 2), draw.tensor("noise")
    slope = draw.bits().uniform(draw.computed) * (high - low) + low
    negative = x.call(aten.le.Scalar, 0)
    noise = negative.call(aten.where.ScalarOther, slope.to(x.dtype), 1)
    return x * noise, noise


RULES: dict[str, Callable[[Draw], Any]] = {
    "bernoulli": _bernoulli,
    "native_dropout": _native_dropout,
    "rand": _rand,
    "rand_like": _rand,
    "uniform": _uniform,
    "randn": _randn,
    "randn_like": _randn,
    "normal": _normal,
    "normal_functional": _normal,
    "log_normal": _log_normal,
    "exponential": _exponential,
    "cauchy": _cauchy,
    "geometric": _geometric,
    "randint": _randint,
    "randint_like": _randint,
    "random": _random,
    "randperm": _randperm,
    "multinomial": _multinomial,
    "rrelu_with_noise_functional": _rrelu,
}
"""What each op of torch draws. Those that reject and try again (poisson, gamma) have no rule."""


def can_draw(name: str, given: Mapping[str, Any], dtype: torch.dtype) -> bool:
    """True if there is a rule for an op with these arguments and a result of that type."""
    if name not in RULES or given.get("generator") is not None or dtype not in _EVERY_INTEGER:
        return False
    if name in ("randint", "randint_like"):
        return _is_range(given.get("low", 0), given["high"])
    if name == "geometric":
        return bool(0 < given["p"] < 1)
    if name == "random":
        low, high = given.get("from", 0), given.get("to")
        return _is_range(low, _EVERY_INTEGER[dtype] if high is None else high)
    return True


def _is_range(low: Any, high: Any) -> bool:
    """True for a range that is known now and not too wide."""
    known = isinstance(low, int) and isinstance(high, int)
    return known and 0 < high - low <= MOST_INTEGERS
