"""Runs without data (`Options.enableSyntheticData`): what a step costs when nothing is transferred.

arguments   their shapes and types count, their values do not: floating-point numbers are drawn
            from N(0, 1) once, all others are 0, which is a valid class and index
results     are not brought back: zeros of the right shape
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pantile.program.spec import TensorSpec


class SyntheticData:
    """The arguments of one executor's calls, made instead of given."""

    def __init__(self) -> None:
        self._made: dict[tuple[TensorSpec, ...], list[torch.Tensor]] = {}
        self._generator = torch.Generator().manual_seed(0)

    def arguments(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors like these, the same ones in every call."""
        kinds = tuple(map(TensorSpec.of, given))
        if kinds not in self._made:
            self._made[kinds] = [self._tensor(kind) for kind in kinds]
        return self._made[kinds]

    def _tensor(self, kind: TensorSpec) -> torch.Tensor:
        if not kind.dtype.is_floating_point:
            return torch.zeros(kind.shape, dtype=kind.dtype)
        return torch.randn(kind.shape, generator=self._generator).to(kind.dtype)


def not_transferred(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What stands for results that stay on the device."""
    return [torch.zeros_like(result) for result in results]
