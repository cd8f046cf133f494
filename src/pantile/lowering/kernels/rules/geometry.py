"""The numbers of a convolution beside its shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pantile.lowering.kernels.refused import Refused


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation of a two-dimensional convolution, and its groups."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @staticmethod
    def of(arguments: Any) -> Geometry:
        """From ATen's arguments; refuses what has no kernel."""
        stride, padding, dilation, transposed, _, groups = arguments
        if transposed:
            raise Refused("a transposed convolution")
        pairs = [tuple(x) * 2 if len(x) == 1 else tuple(x) for x in (stride, padding, dilation)]
        return Geometry(pairs[0], pairs[1], pairs[2], groups)
