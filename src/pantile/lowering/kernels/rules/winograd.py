"""Where a convolution of 3 x 3 taps is computed by Winograd's transformations: where that pays.

Costs are in multiplications that a core could do meanwhile. See templates/winograd.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pantile.lowering.kernels.rules.geometry import Geometry

_VECTOR = 16
"""Channels of a source come in multiples of this: no vector of any CPU is longer."""
_SOURCE, _RESULT = 40, 45
"""To transform one channel of a tile, before and after the products."""
_PACK, _PACK_DIRECT = 80, 30
"""To transform, or only to pack, what the weight has for a pair of channels."""
_FROM_AFAR, _FAR = 4, 1 << 18
"""To read a number of a weight of more than so many."""
_WORTH = 0.9
"""It must cost this part of the direct way, or less."""

_Shape = Sequence[int]


def paying(
    geometry: Geometry, images: _Shape, weight: _Shape, results: _Shape, *, at_once: int = 1
) -> frozenset[str]:
    """For which of `forward`, `input` and `weight` it pays, by the shapes of the convolution.

    `at_once`: what the direct way multiplies in the time of one.
    """
    ones = (*geometry.stride, *geometry.dilation, geometry.groups)
    if tuple(weight[2:]) != (3, 3) or set(ones) != {1} or max(geometry.padding) > 2:
        return frozenset()
    outputs, inputs = weight[:2]
    hits = images[0] * prod(map(_hits, images[2:], results[2:], geometry.padding))
    there = {
        "forward": _pays(_tiles(results), hits, inputs, outputs, at_once),
        "input": _pays(_tiles(images), hits, outputs, inputs, at_once),
        "weight": not outputs % _VECTOR and _pays(_tiles(results), hits, inputs, outputs, at_once),
    }
    return frozenset(way for way, pays in there.items() if pays)


def _pays(tiles: int, hits: int, k: int, m: int, at_once: int) -> bool:
    """From K channels to M; `hits` are pairs of a result and a tap that meet a pixel."""
    if k % _VECTOR:
        return False
    m = -(-m // _VECTOR) * _VECTOR
    pairs = k * m
    far = _FROM_AFAR * pairs if 9 * pairs > _FAR else 0
    here = tiles * (16 * pairs + _SOURCE * k + _RESULT * m) + _PACK * pairs + 16 * far
    direct = (hits + _PACK_DIRECT) * pairs + 9 * far
    return here <= _WORTH * direct / at_once


def _tiles(shape: _Shape) -> int:
    return shape[0] * prod(-(-size // 2) for size in shape[2:])


def _hits(size: int, result: int, padding: int) -> int:
    """In one direction."""
    places = (at + tap - padding for at in range(result) for tap in range(3))
    return sum(0 <= place < size for place in places)
