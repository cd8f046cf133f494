"""Decompositions that are found without Inductor's table are those it has."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table

from pantile.lowering.kernels.decompositions import decompositions
from pantile.lowering.kernels.torch_rules import NO_RULE, REGISTERED, SPECIAL, torch_rule

aten = torch.ops.aten


def _overloads(name: str) -> list[Any]:
    namespace, short = name.split("::")
    packet = getattr(getattr(torch.ops, namespace), short)
    found = [getattr(packet, overload) for overload in packet.overloads()]
    return [op for op in found if not op._schema.is_mutable]


@pytest.mark.parametrize("name", sorted(NO_RULE | REGISTERED))
def test_a_usual_operator_has_the_rule_of_inductors_table(name: str) -> None:
    whole = select_decomp_table()

    assert [torch_rule(op) for op in _overloads(name)] == [whole.get(op) for op in _overloads(name)]


SQUARE = torch.ones(3, 3)

USUAL: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (SQUARE, SQUARE), {"alpha": 2}),
    (aten.add.Scalar, (SQUARE, 1), {}),
    (aten.addmm.default, (SQUARE, torch.ones(3, 1), torch.ones(1, 3)), {}),
    (aten.mm.default, (torch.ones(2, 40), torch.ones(40, 1)), {}),
    (aten.mm.default, (torch.ones(2, 2), torch.ones(2, 2)), {}),
    (aten.bmm.default, (torch.ones(1, 2, 2), torch.ones(1, 2, 1)), {}),
    (aten.amax.default, (SQUARE, [0]), {}),
    (aten.amin.default, (SQUARE, [0]), {}),
    (aten.cat.default, ([SQUARE, SQUARE + 1], 1), {}),
    (aten.full.default, ([2], 1), {"dtype": torch.float32}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), USUAL, ids=lambda value: str(value)[:20])
def test_inductor_has_no_rule_for_the_usual_case(op: Any, args: Any, kwargs: Any) -> None:
    assert not SPECIAL[op](*args, **kwargs)
    assert select_decomp_table()[op](*args, **kwargs) is NotImplemented
    assert decompositions()[op](*args, **kwargs) is NotImplemented


ROW, COLUMN = torch.arange(3.0).view(1, 3), torch.arange(3.0).view(3, 1)

UNUSUAL: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.mm.default, (ROW, COLUMN)),
    (aten.mm.default, (COLUMN, ROW)),
    (aten.bmm.default, (COLUMN[None], ROW[None])),
    (aten.addmm.default, (SQUARE[:1], ROW, SQUARE)),
    (aten.amax.default, (SQUARE > 0, [0])),
    (aten.cat.default, ([ROW, ROW], 1)),
    (aten.cat.default, ([ROW, torch.ones(0)], 1)),
    (aten.full.default, ([2], 1)),
]


@pytest.mark.parametrize(("op", "args"), UNUSUAL, ids=lambda value: str(value)[:20])
def test_a_special_case_has_inductors_rule(op: Any, args: Any) -> None:
    assert SPECIAL[op](*args)
    assert torch.equal(decompositions()[op](*args), op(*args))


@pytest.mark.parametrize("dtype", [None, torch.int32])
@pytest.mark.parametrize("x", [torch.ones(2, 3), torch.ones(3, 2).t()], ids=["plain", "turned"])
def test_full_like_lies_as_inductors_does(x: torch.Tensor, dtype: torch.dtype | None) -> None:
    ours = decompositions()[aten.full_like.default](x, 2, dtype=dtype)
    theirs = select_decomp_table()[aten.full_like.default](x, 2, dtype=dtype)

    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    assert torch.equal(ours, theirs)


def test_the_table_can_be_written_out() -> None:
    table = decompositions()

    assert len(dict(table)) == len(table) > 1000
    assert aten.max_pool2d_with_indices.default not in dict(table)


SCRIPT = """
import sys, torch, poptorch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 3))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels):
        out = self.body(x)
        return out, self.loss(out, labels)

model = Net()
options = poptorch.Options().engine("native").showCompilationProgressBar(False)
training = poptorch.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
training.compile(torch.ones(4, 1, 4, 4), torch.tensor([0, 1, 2, 0]))
print([facts["lowering"] for facts in training.nativeDecisions()])
print("torch._inductor.decomposition" in sys.modules)
"""


def test_a_usual_model_is_compiled_without_inductors_table() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300
    )

    assert done.stdout.splitlines() == ["['kernels']", "False"]
