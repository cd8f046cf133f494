"""Results that are slices or expanded: written without the gaps they have in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.programs import Case, check, compiled

SLICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first row": lambda h: h[:, 0],
    "every other row": lambda h: h[:, ::2],
    "some columns": lambda h: h[..., 2:5],
    "expanded": lambda h: h.sum(-1, keepdim=True).expand(-1, -1, 4),
    "a column, transposed": lambda h: h.transpose(0, 2)[1],
}


def test_slices_of_what_is_computed_and_of_inputs_are_right():
    x = torch.randn(3, 5, 8)
    made = [Case(name, lambda x, s=s: (s(x.exp()), x.sum(0)), (x,)) for name, s in SLICES.items()]
    given = [Case(name, lambda x, s=s: (s(x), x + 1), (x,)) for name, s in SLICES.items()]

    check([*made, *given])


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_has_no_gaps(name: str):
    x = torch.randn(3, 5, 8)

    (result,) = compiled(lambda x: SLICES[name](x.exp()), [x]).run([x]).results

    assert result.is_contiguous()


def test_a_transposed_result_lies_as_in_torch():
    x = torch.randn(3, 5, 8)

    (result,) = compiled(lambda x: x.exp().transpose(1, 2), [x]).run([x]).results

    assert result.stride() == (40, 1, 8)
