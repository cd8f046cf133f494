"""Products by the CPU's unit for matrices, as whole programs, where there is one."""

from __future__ import annotations

import copy

import pytest
import torch

import poptorch
from pantile.lowering.kernels.build import has_tiles
from pantile.lowering.kernels.matrix_unit import SWITCH, is_granted

pytestmark = pytest.mark.skipif(not is_granted(), reason="this CPU has no AMX")

SIZE = 416  # the product of floats is large enough, and no multiple of a block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("switch", ["1", "0"])
def test_products_are_as_near_to_float64_as_eagers(
    monkeypatch: pytest.MonkeyPatch, switch: str, dtype: torch.dtype
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    torch.manual_seed(0)
    layers = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE)
    model, x = torch.nn.Sequential(*layers).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    eager, right = model(x), copy.deepcopy(model).double()(x.double())
    executor = poptorch.inferenceModel(model, poptorch.Options().engine("native"))

    executor(x)  # on the reference engine
    ours = executor(x)

    assert executor.nativeDecisions()[0]["tiles"] == (switch == "1")
    assert (ours - right).norm() <= 2 * (eager - right).norm()


def test_the_unit_is_for_the_cpu_of_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_tiles()

    monkeypatch.setenv("PANTILE_CPU", "x86-64-v4")

    assert not has_tiles()
