"""Where a convolution multiplies pairs of bfloat16: wherever the CPU does, and channels are even.

See templates/conv_pairs.h. It is 1.7 to 2.2 times as fast as floats are, Winograd's way aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import fx

from pantile.lowering.kernels.build import multiplies_pairs
from pantile.lowering.kernels.rules.geometry import Geometry
from pantile.lowering.kernels.rules.winograd import paying
from pantile.lowering.kernels.types import dtype_of, shape_of

_MOST_TAPS = 49
"""Words of more taps would not go on the stack while the weight is packed."""


def by_pairs(geometry: Geometry, nodes: Sequence[fx.Node], to: str) -> bool:
    """Is `forward` or `input` done by pairs? The nodes have the shapes of images, weight, results.

    The source and the weight must be bfloat16; Winograd's way of floats must not be faster still.
    """
    images, weight, results = nodes
    source = images if to == "forward" else results
    if not multiplies_pairs() or geometry.groups > 1:
        return False
    if any(dtype_of(node) is not torch.bfloat16 for node in (source, weight)):
        return False
    if shape_of(source)[1] % 2 or prod(shape_of(weight)[2:]) > _MOST_TAPS:
        return False
    shapes = (shape_of(node) for node in nodes)
    return to not in paying(geometry, *shapes, at_once=2)
