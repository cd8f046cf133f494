from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from poptorch_geometric.masker import Masker, NoMasker, PaddingMasker, PreLayerMasker

MASK = torch.tensor([True, False, True])
KINDS = ("node_masker", "edge_masker", "graph_masker")


@pytest.mark.parametrize("kind", KINDS)
def test_padding_becomes_zero_and_has_no_gradient(kind):
    rows = torch.tensor([[1.0, 2.0], [torch.nan, 4.0], [5.0, 6.0]], requires_grad=True)

    masked = getattr(PaddingMasker(), kind)(rows, MASK)

    assert_close(masked, torch.tensor([[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]))
    masked.sum().backward()
    assert_close(rows.grad, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_without_masking_nothing_changes(kind):
    rows = torch.randn(3, 2)

    assert getattr(NoMasker(), kind)(rows, MASK) is rows
    assert getattr(PaddingMasker(), kind)(rows) is rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_can_have_its_inputs_masked(kind):
    layer = getattr(PreLayerMasker(PaddingMasker()), kind)(lambda a, b: a + b)

    assert layer(torch.ones(3), torch.ones(3), mask=MASK).tolist() == [2, 0, 2]
    assert layer(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]


def test_a_masker_must_say_what_it_does():
    with pytest.raises(TypeError):
        Masker()
