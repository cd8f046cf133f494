"""Paddle's operators as torch functions: one table, one family a file.

activations.py    one tensor, element by element
arithmetic.py     two tensors, scaling, matrix products
reductions.py     sums, norms, sorting
convolutions.py   convolutions and pooling
normalization.py  norms and dropout
recurrent.py      LSTM, GRU and plain recurrent layers
shapes.py         reshape, slice, join, repeat, pad
creation.py       constants, draws, casts, look-ups
interpolation.py  resizing
losses.py         losses
marks.py          marks, prints, boxes
updates.py        the update rules of optimizers
"""

from __future__ import annotations

from types import MappingProxyType

from pantile.paddle.call import Table, Translation
from pantile.paddle.operators import (
    activations,
    arithmetic,
    convolutions,
    creation,
    interpolation,
    losses,
    marks,
    normalization,
    recurrent,
    reductions,
    shapes,
    updates,
)

_FAMILIES = (
    activations,
    arithmetic,
    reductions,
    convolutions,
    normalization,
    recurrent,
    shapes,
    creation,
    interpolation,
    losses,
    marks,
    updates,
)


def _joined() -> Table:
    table: dict[str, Translation] = {}
    for family in _FAMILIES:
        twice = table.keys() & family.TABLE.keys()
        assert not twice, f"{family.__name__} translates again: {sorted(twice)}"
        table.update(family.TABLE)
    return MappingProxyType(table)


OPERATORS: Table = _joined()
"""Every operator that has a translation."""
