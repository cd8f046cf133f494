"""Values to time a program with: copies of what is known, harmless numbers for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pantile.lowering.native import StepPrograms
from pantile.lowering.prepare import Prepared
from pantile.lowering.torch_threads import torch_threads
from pantile.program.spec import Input, InputKind, TensorSpec

Known = Mapping[tuple[InputKind, str], torch.Tensor]

_SMALL = 1e-3


def samples_of(programs: StepPrograms, part: str, known: Known) -> list[torch.Tensor]:
    """A value for each input of a program of a step."""
    with torch_threads(1):
        return _values(programs.all[part], known)


def _values(prepared: Prepared, known: Known) -> list[torch.Tensor]:
    constants = iter(prepared.constants)
    values = []
    for node, entry in zip(prepared.program.placeholders, prepared.program.inputs, strict=True):
        if entry.kind is InputKind.CONSTANT:
            values.append(next(constants))
            continue
        value = torch.empty_strided(
            tuple(node.meta["val"].shape), tuple(node.meta["val"].stride()), dtype=_dtype(entry)
        )
        found = known.get((entry.kind, entry.name))
        if found is not None and found.shape == value.shape:
            value.copy_(found)
        else:
            value.fill_(_SMALL if value.is_floating_point() or value.is_complex() else 1)
        values.append(value)
    return values


def _dtype(entry: Input) -> torch.dtype:
    assert isinstance(entry.spec, TensorSpec)
    return entry.spec.dtype
