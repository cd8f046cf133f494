"""What types a function on the host sees and returns (spec 1.6)."""

from __future__ import annotations

import torch
from tests.unit.runtime.toy_models import Pass, options, strict
from torch import nn

import poptorch


def seen_and_returned(opts, x):
    seen = []

    def double(value):
        seen.append(value.dtype)
        return value * 2

    call = poptorch.CPU(double, "double")
    out = poptorch.inferenceModel(Pass(lambda value: call(value)), opts)(x)
    return seen[-1], out


def test_types_are_kept():
    kind, out = seen_and_returned(options(), torch.tensor([1, 2]))

    assert kind is out.dtype is torch.int64
    assert out.tolist() == [2, 4]


def test_in_strict_mode_data_passes_through_float32():
    kind, out = seen_and_returned(strict(), torch.tensor([1.0, 2.0]).half())

    assert kind is out.dtype is torch.float32
    assert out.tolist() == [2.0, 4.0]


def test_in_strict_mode_containers_of_results_are_kept():
    call = poptorch.CPU(lambda x: (x.int(), x.double()), "two")

    out = poptorch.inferenceModel(Pass(lambda x: call(x)), strict())(torch.ones(2))

    assert isinstance(out, tuple)
    assert [t.dtype for t in out] == [torch.float32, torch.float32]


def test_a_result_on_the_host_is_no_leaf_in_strict_inference():
    call, leaves = poptorch.CPU(lambda value: value * 2, "double"), []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            result = call(x * self.weight)
            leaves.append(result.is_leaf)
            return result

    result = poptorch.inferenceModel(Model(), strict())(torch.ones(3))

    assert leaves == [False]
    assert result.tolist() == [2, 2, 2] and not result.requires_grad
