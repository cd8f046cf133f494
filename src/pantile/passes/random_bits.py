"""Random numbers from a seed and the index of an element, by arithmetic alone.

    element i                             64 bits, Philox-2x32 of (i, seed); see philox.py
    uniform in [0, 1)                     (lower half >> 8) * 2**-24

No number needs the one before: any loop can compute them, in any order and on any thread. Every
engine computes the same bits from the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from pantile.passes.formula import Formulas, Term
from pantile.passes.philox import PHILOX

aten = torch.ops.aten

_WORD = 32
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}

MOST_ELEMENTS = 2**31 - 1
"""An index has 31 bits."""

MOST_INTEGERS = 2**63
"""How many different integers can be drawn."""

FLOATS = frozenset(_DIGITS)
"""The floating types of random numbers."""


class RandomBits:
    """The random numbers of one site: of the shape and strides of `like`, from one seed."""

    def __init__(self, formulas: Formulas, seed: fx.Node, like: torch.Tensor) -> None:
        self._formulas = formulas
        self._like = like
        self._bits = self._numbered().call(PHILOX, formulas.tensor(seed))

    def words(self, which: int = 0) -> Term:
        """32 random bits for each element; the words 0 and 1 are independent."""
        bits = self._bits
        if which:
            bits = bits.call(aten.bitwise_right_shift.Tensor_Scalar, _WORD)
        return bits.to(torch.int32)

    def uniform(self, dtype: torch.dtype = torch.float32) -> Term:
        """In [0, 1), with as many random digits as the type has."""
        digits = _DIGITS[dtype]
        bits = self.words() if digits <= _WORD else self._bits
        return _top(bits, digits).to(dtype) * 2.0**-digits

    def inside(self, dtype: torch.dtype = torch.float32, which: int = 0) -> Term:
        """In (0, 1], fine enough near 0 for a logarithm."""
        return (_top(self.words(which), 31).to(dtype) + 0.5) * 2.0**-31

    def normal(self, dtype: torch.dtype = torch.float32) -> Term:
        """Of mean 0 and deviation 1, by Box and Muller."""
        radius = (self.inside(dtype).call(aten.log.default) * -2.0).sqrt()
        turn = _top(self.words(1), 24).to(dtype) * (2 * math.pi * 2.0**-24)
        return radius * turn.call(aten.cos.default)

    def exponential(self, dtype: torch.dtype = torch.float32) -> Term:
        """Of rate 1; never 0."""
        below = self.inside(dtype).call(aten.clamp.default, None, 1 - 2.0**-24)
        return -below.call(aten.log.default)

    def integers(self, count: int) -> Term:
        """int64 in [0, count); no value is likelier than another by more than count / 2**63."""
        drawn = _top(self._bits, 63)
        return drawn if count == MOST_INTEGERS else drawn.call(aten.remainder.Scalar, count)

    def _numbered(self) -> Term:
        """0, 1, 2, … in the order of the memory of `like`."""
        order = _memory_order(self._like)
        shape = [self._like.shape[d] for d in order]
        count = self._like.numel()
        flat = self._formulas.writer.call(aten.arange.default, count, dtype=torch.int32)
        index = self._formulas.tensor(flat).call(aten.view.default, shape)
        if order == sorted(order):
            return index
        return index.call(aten.permute.default, [order.index(d) for d in range(len(order))])


def _memory_order(like: torch.Tensor) -> list[int]:
    """Dimensions from the one with the largest stride; as they are if the tensor has gaps."""
    dims = range(like.dim())
    strides = like.stride()
    order = sorted(dims, key=lambda d: (-strides[d], d))
    dense = _strides([like.shape[d] for d in order])
    fits = (s == strides[d] or like.shape[d] == 1 for s, d in zip(dense, order, strict=True))
    return order if all(fits) else list(dims)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _top(x: Term, bits: int) -> Term:
    """The top bits of a word, or of two, as a number that is not negative."""
    shifted = x.call(aten.bitwise_right_shift.Tensor_Scalar, 8 * x.dtype.itemsize - bits)
    return shifted.call(aten.bitwise_and.Scalar, 2**bits - 1)
