"""The factors between what the formulas say and what was measured: one for each class of work.

They stand for what no formula here knows: rearrangements the compiler inserts, copies into outlined
functions, control code, imbalance of tiles. They were fitted to the three points marked `calibrate`
in the list of published results, and to nothing else; `benchmarks/machine` refits and checks.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONVOLUTIONAL = frozenset({"conv"})

#: Lowest and highest relative error on published points that were not fitted.
ERROR_BANDS = {"general": (-0.13, 0.32), "convolution": (-0.28, 0.15)}


@dataclass(frozen=True)
class Calibration:
    """`general` multiplies the cycles of every op but convolutions, which have `convolution`."""

    general: float = 1.148
    convolution: float = 1.119

    def factor(self, kind: str) -> float:
        """The factor of a class of work."""
        return self.convolution if kind in _CONVOLUTIONAL else self.general
