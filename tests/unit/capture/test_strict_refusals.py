"""Strict mode keeps host tensors apart from device tensors, and refuses what IPUs cannot do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch
from pantile.errors import CaptureError

X = torch.arange(12.0).reshape(3, 4)
TABLE = torch.ones(4)


class Model(nn.Module):
    """A function of one tensor."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def run(function, *, strict=True):
    options = poptorch.Options().strict(strict).engine("reference")
    return poptorch.inferenceModel(Model(function), options)(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + TABLE,
        lambda x: x + torch.FloatTensor([1, 2, 3, 4]),
        lambda x: x + (TABLE * 2),
        lambda x: torch.cat([x, TABLE.unsqueeze(0)]),
        lambda x: x[torch.LongTensor([0, 2])],
    ],
)
def test_a_tensor_of_the_host_is_refused_where_it_meets_the_device(function):
    with pytest.raises(CaptureError, match=r"Expected an IPU tensor but got tensor\(device=cpu"):
        run(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + TABLE.to(x.device),
        lambda x: x + TABLE.to(x),
        lambda x: x + TABLE.type_as(x) * 2,
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda x: x + torch.ones(4),
        lambda x: x * TABLE.max().item(),
        lambda x: x[: int(TABLE.sum()) - 2],
        lambda x: x + 1,
    ],
)
def test_tensors_that_forward_moves_or_makes_are_welcome(function):
    assert torch.equal(run(function), function(X))


@pytest.mark.parametrize("function", [lambda x: x + TABLE, lambda x: x[torch.LongTensor([0, 2])]])
def test_by_default_a_tensor_of_the_host_is_a_constant(function):
    assert torch.equal(run(function, strict=False), function(X))


def test_printing_a_tensor_in_forward_shows_its_shape_instead_of_values(capsys):
    run(lambda x: (print(x), x + 1)[1])

    assert "tensor(<unavailable>, size=(3, 4), dtype=torch.float32)" in capsys.readouterr().out


def test_a_tensor_made_without_a_device_is_told_of_once(caplog):
    run(lambda x: x + torch.ones(4) + torch.ones(4) + torch.zeros(4, device=x.device))

    told = [record.message for record in caplog.records if "forcing to IPU" in record.message]
    assert told == ["No device is set in torch.ones(): forcing to IPU"]


def test_counts_of_a_given_size_run_in_both_modes():
    for strict in (False, True):
        result = run(lambda x: torch.bincount(x[:, 0].long(), minlength=10), strict=strict)

        assert torch.equal(result, torch.bincount(X[:, 0].long(), minlength=10).to(result.dtype))


def test_a_value_that_has_no_count_is_an_error_when_the_program_runs():
    with pytest.raises(poptorch.Error, match="not below minlength=3"):
        run(lambda x: torch.bincount(x[:, 0].long(), minlength=3), strict=False)


def test_weighted_counts_are_eagers():
    def count(x):
        return torch.bincount(x[:, 0].long(), weights=x[:, 1], minlength=9)

    assert torch.equal(run(count, strict=False), count(X))


def test_random_integers_between_bounds_follow_eager():
    def draw(x):
        return x.clone().random_(3, 9)

    torch.manual_seed(1)
    found = run(draw, strict=False)

    torch.manual_seed(1)
    assert torch.equal(found, draw(X))


@pytest.mark.parametrize(
    ("function", "fragment"),
    [
        (lambda x: F.ctc_loss(x.unsqueeze(1), torch.tensor([1]), (3,), (1,)), "2"),
        (lambda x: torch.linalg.matrix_norm(x, "nuc"), "nuc"),
        (lambda x: F.max_pool1d(x, 2, return_indices=True)[0], "return_indices"),
    ],
)
def test_what_an_ipu_cannot_compute_is_refused_with_the_argument(function, fragment):
    with pytest.raises(CaptureError, match=f"not supported on an IPU: .*{fragment}"):
        run(function)


def mark_input(x):
    return poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapAccumulationLoop)


def test_hints_are_kept_with_the_ops_they_are_about():
    def forward(x):
        y = poptorch.set_available_memory(mark_input(x) @ x.t(), 0.3)
        mode = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(y, x, mode, factor=2)

    executor = poptorch.inferenceModel(Model(forward), poptorch.Options().engine("reference"))
    executor(X)

    hints = executor._compiled[0].captured.hints
    assert [(hint.kind, hint.op, hint.shape) for hint in hints] == [
        ("overlap_input", "input", (3, 4)),
        ("available_memory", "aten.mm.default", (3, 3)),
        ("serialized_matmul", "aten.mm.default", (3, 4)),
    ]
    assert hints[1].details == {"proportion": 0.3}
    assert hints[2].details["factor"] == 2
    assert "test_strict_refusals.py" in hints[1].source
