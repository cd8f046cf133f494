"""Philox-2x32: 64 random bits from the index of an element and a seed.

    counter    (a, b) = (index, upper half of the seed)              words of 32 bits
    key        k      = lower half of the seed
    a round    (a, b), k  ->  (high(M * a) ^ k ^ b, low(M * a)), k + W
    result     a | b << 32

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). For a key it is
a bijection of counters; with seven rounds or more it passes all tests of BigCrush.

It is an operator of its own. Our kernels have C++ for it (`i_philox` in templates/math.h); for all
others it is what the function below computes, in int64 and with no product that overflows.
"""

from __future__ import annotations

import torch

ROUNDS = 7
"""The fewest that are crush-resistant, says the paper; Random123's own default is ten."""

_MULTIPLIER, _WEYL = 0xD256D193, 0x9E3779B9
_HALF, _WORD = (1 << 16) - 1, (1 << 32) - 1


def philox(index: torch.Tensor, seed: torch.Tensor, rounds: int = ROUNDS) -> torch.Tensor:
    """int64, of the shape of an int32 `index`; the seed is an int64 of no dims."""
    a, b, key = index.to(torch.int64) & _WORD, (seed >> 32) & _WORD, seed & _WORD
    for number in range(rounds):
        lower = a * (_MULTIPLIER & _HALF)
        upper = a * (_MULTIPLIER >> 16) + (lower >> 16)
        a = ((upper >> 16) ^ (key + number * _WEYL) ^ b) & _WORD
        b = ((upper & _HALF) << 16) | (lower & _HALF)
    return a | (b << 32)


@torch.library.custom_op("pantile::philox", mutates_args=())
def _operator(index: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    return philox(index, seed)


@_operator.register_fake
def _shape(index: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(index, dtype=torch.int64)


PHILOX = torch.ops.pantile.philox.default
"""The operator."""
