"""Where a convolution of 3 x 3 taps is computed by Winograd's transformations: where that pays.

Costs are in multiplications that a core could do meanwhile. See templates/winograd.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

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

_SCATTERED = 50
"""To transform one channel of a tile that is added to its neighbours, after the products."""
_IMAGES = 4
"""Threads share images where tiles are added to their neighbours: so many there must be."""

_Shape = Sequence[int]


def paying(
    geometry: Geometry, images: _Shape, weight: _Shape, results: _Shape, *, at_once: int = 1
) -> frozenset[str]:
    """For which of `forward`, `input` and `weight` it pays, by the shapes of the convolution.

    With `scatter`, the tiles of `input` are those of the results: templates/winograd_scatter.h.
    `at_once`: what the direct way multiplies in the time of one.
    """
    ones = (*geometry.stride, *geometry.dilation, geometry.groups)
    if tuple(weight[2:]) != (3, 3) or set(ones) != {1} or max(geometry.padding) > 2:
        return frozenset()
    outputs, inputs = weight[:2]
    hits = images[0] * prod(map(_hits, images[2:], results[2:], geometry.padding))
    forward, back = _Pair(inputs, outputs), _Pair(outputs, inputs)
    gathered = back.cost(_tiles(images), _RESULT)
    scattered = back.cost(_tiles(results), _SCATTERED) if images[0] >= _IMAGES else inf
    there = {
        "forward": forward.pays(forward.cost(_tiles(results), _RESULT), hits, at_once),
        "input": back.pays(min(gathered, scattered), hits, at_once),
    }
    there["scatter"] = there["input"] and scattered < gathered
    there["weight"] = there["forward"] and not outputs % _VECTOR
    return frozenset(way for way, pays in there.items() if pays)


class _Pair:
    """From K channels to M."""

    def __init__(self, k: int, m: int) -> None:
        self.k, self.m = k, -(-m // _VECTOR) * _VECTOR
        self.products = k * self.m
        self.far = _FROM_AFAR * self.products if 9 * self.products > _FAR else 0

    def cost(self, tiles: int, after: int) -> float:
        """Of so many tiles; `after`: to transform one channel of a tile of results."""
        each = 16 * self.products + _SOURCE * self.k + after * self.m
        return tiles * each + _PACK * self.products + 16 * self.far

    def pays(self, cost: float, hits: int, at_once: int) -> bool:
        """Is that less than the direct way costs?

        `hits` are pairs of a result and a tap that meet a pixel.
        """
        direct = (hits + _PACK_DIRECT) * self.products + 9 * self.far
        return self.k % _VECTOR == 0 and cost <= _WORTH * direct / at_once


def _tiles(shape: _Shape) -> int:
    return shape[0] * prod(-(-size // 2) for size in shape[2:])


def _hits(size: int, result: int, padding: int) -> int:
    """In one direction."""
    places = (at + tap - padding for at in range(result) for tap in range(3))
    return sum(0 <= place < size for place in places)
