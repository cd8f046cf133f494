"""What the log tells of a step at level TRACE."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch
from pantile.logging import TRACE


def told(
    model: nn.Module, caplog: pytest.LogCaptureFixture, *args: torch.Tensor, train: bool = False
) -> list[str]:
    options = poptorch.Options().strict().showCompilationProgressBar(False)
    wrap = poptorch.trainingModel if train else poptorch.inferenceModel
    with caplog.at_level(TRACE, logger="poptorch::python"):
        wrap(model, options)(*args)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "Float"), (torch.float16, "Half")])
def test_state_is_told_with_its_type(
    dtype: torch.dtype, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(dtype)

    lines = told(model, caplog, torch.randn(2, 4, dtype=dtype))

    weight = f" : {name}(3, 4, strides=[4, 1], requires_grad=0, device=ipu:0) -> 0.weight"
    statistic = f" : {name}(3, strides=[1], requires_grad=0, device=ipu:0) -> 1.running_var"
    assert any(line.startswith("%") and line.endswith(weight) for line in lines)
    assert any(line.startswith("%") and line.endswith(statistic) for line in lines)


def test_weights_that_are_trained_say_so(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.fc.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.fc(x), reduction="sum")

    text = "\n".join(told(Model(), caplog, torch.ones(3, 2), train=True))

    assert "Float(1, 2, strides=[2, 1], requires_grad=1, device=ipu:0) -> fc.weight" in text
    assert "Float(1, strides=[1], requires_grad=0, device=ipu:0) -> fc.bias" in text


class Put(nn.Module):
    """Writes through indices of one axis, or of two."""

    def __init__(self, axes: int, axis: int = 0) -> None:
        super().__init__()
        self.axes, self.axis = axes, axis

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = x * 1
        if self.axes == 2:
            out[i, i] = 0.0
        elif self.axis == 1:
            out[:, i] = 0.0
        else:
            out[i] = 0.0
        return out


@pytest.mark.parametrize(
    ("model", "by_rows"), [(Put(1), True), (Put(1, axis=1), True), (Put(2), False)]
)
def test_a_write_of_whole_rows_is_told(
    model: nn.Module, by_rows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lines = told(model, caplog, torch.ones(4, 4), torch.tensor([0, 2, 2, 3]))

    found = any("Using vectorized ScatterReduce with none reduction" in line for line in lines)
    assert found is by_rows


class Hinted(nn.Module):
    def __init__(self, op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return poptorch.set_available_memory(self.op(x, i), 0.3) + 1


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (lambda x, i: torch.matmul(x, x), "matmul"),
        (lambda x, i: (torch.matmul(x, x) + 2).view(2, 8), "matmul"),
        (lambda x, i: torch.zeros(4, 4).scatter_add(0, i, x), "scatterreduce"),
    ],
)
def test_a_hint_of_memory_names_the_op_that_works(
    op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = torch.zeros(4, 4, dtype=torch.int64)

    text = "\n".join(told(Hinted(op), caplog, torch.ones(4, 4), index))

    graph = text.partition("Graph right before popart:\n")[2].splitlines()
    product = next(line for line in graph if f" = popart::{kind}(" in line)
    hint = next(line for line in graph if "poptorch::set_available_memory[" in line)
    assert graph[0].startswith("graph(%")
    assert graph.index(product) < graph.index(hint)
    assert hint.endswith(f"({product.split()[0]})")
