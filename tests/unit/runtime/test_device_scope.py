"""`IPUScope`: the ops of a block, played again on the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pantile.errors import StateError
from poptorch.experimental import IPUScope


def test_a_block_runs_again_with_other_inputs():
    x = torch.ones(10)
    with IPUScope([x]) as ipu:
        ipu.outputs((x.to("xla") + 5) * 3)

    other = torch.randn(10)

    assert ipu(x).tolist() == [18.0] * 10
    torch.testing.assert_close(ipu(other), (other + 5) * 3)


def test_a_block_uses_the_weights_of_a_model():
    conv, x = nn.Conv2d(5, 10, 5), torch.randn(1, 5, 25, 25)
    with IPUScope([x], model=conv) as ipu:
        ipu.outputs([conv(x)])

    torch.testing.assert_close(ipu(x), conv(x))


def test_views_and_writes_are_played_in_order():
    def half_zero(t):
        view = t.view(2, 2)
        view[0].zero_()
        return t * 2, view + 1

    x = torch.arange(4.0)
    with IPUScope([x]) as ipu:
        ipu.outputs(half_zero(x))

    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    for result, expected in zip(ipu(x), half_zero(x.clone()), strict=True):
        torch.testing.assert_close(result, expected)


def test_dropout_draws_anew_on_the_device():
    x = torch.ones(1000)
    with IPUScope([x]) as ipu:
        ipu.outputs(F.dropout(x, 0.5))

    first, second = ipu(x), ipu(x)

    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(first, second)


def test_a_block_without_outputs_cannot_be_called():
    with IPUScope([torch.ones(1)]) as ipu:
        pass

    with pytest.raises(StateError, match="no outputs"):
        ipu(torch.ones(1))
