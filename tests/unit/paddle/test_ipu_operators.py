"""Operators that only IPU programs have: no wheel has a kernel to compare with, so formulas do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pantile.errors import OperandError, OperandTypeError
from pantile.paddle.call import Call
from pantile.paddle.description import Operator
from pantile.paddle.registry import register_operator, translations, unregister_operator


def _computed(kind: str, *tensors: torch.Tensor, **attributes: Any) -> torch.Tensor | None:
    """Out of an operator with X and Y."""
    values = dict(zip(("x", "y"), tensors, strict=False))
    inputs = {name.upper(): (name,) for name in values}
    operator = Operator(kind, inputs, {"Out": ("out",)}, attributes)
    translations()[kind](Call(operator, values, {}))
    return values.get("out")


@pytest.mark.parametrize("kind", ["identity", "checkpointoutput"])
def test_a_mark_passes_values_and_gradients_on(kind: str) -> None:
    x = torch.randn(2, 3, requires_grad=True)

    out = _computed(kind, x)

    assert out is not None and torch.equal(out, x)
    (gradient,) = torch.autograd.grad(3 * out.sum(), x)
    assert torch.equal(gradient, torch.full((2, 3), 3.0))


def test_clip_with_one_bound_works_in_half_precision() -> None:
    # A missing bound is written as the largest float32, which half precision cannot hold.
    x = torch.tensor([-1.0, 0.05, 60000.0], dtype=torch.float16)

    out = _computed("clip", x, min=0.1, max=3.4028234663852886e38)

    assert out is not None and out.dtype is torch.float16
    assert torch.equal(out, torch.tensor([0.1, 0.1, 60000.0], dtype=torch.float16))


def test_detach_passes_values_on_and_no_gradient() -> None:
    x = torch.randn(2, 3, requires_grad=True)

    out = _computed("detach", x)

    assert out is not None and torch.equal(out, x) and not out.requires_grad


def test_the_optimizer_of_popart_computes_nothing() -> None:
    assert _computed("popart_optimizer") is None


def test_one_hot_drops_the_last_dim_of_its_classes() -> None:
    out = _computed("one_hot", torch.tensor([[2], [0]]), depth=3, dtype=5)

    assert torch.equal(out, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("reduction", [0, 1, 2, "Sum", "Mean", "None"])
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("ignored", ["None", "1"])
def test_custom_nll_loss_follows_its_formula(
    reduction: int | str, is_log: bool, ignored: str
) -> None:
    shares = torch.softmax(torch.randn(4, 3), -1)
    labels = torch.tensor([0, 1, 2, 1])
    kept = torch.ones(4) if ignored == "None" else (labels != 1).float()
    each = -torch.log(shares[torch.arange(4), labels]) * kept
    number = {"Sum": 0, "Mean": 1, "None": 2}.get(str(reduction), reduction)
    expected = (each.sum(), each.sum() / kept.sum(), each)[int(number)]

    out = _computed(
        "custom_nll_loss",
        shares.log() if is_log else shares,
        labels,
        reduction=reduction,
        ignoreIndex=ignored,
        inputIsLogProbability=is_log,
    )

    assert out is not None
    torch.testing.assert_close(out, expected.reshape(out.shape))
    assert out.shape == ((4,) if number == 2 else (1,))


def test_a_custom_operator_is_the_function_that_was_registered() -> None:
    register_operator("power_and_root", lambda x, exponent: (x**exponent, x.sqrt()))
    values = {"x": torch.tensor([4.0, 9.0])}
    outputs = {"Power": ("p",), "Root": ("r",)}
    attributes = {"exponent": 2.0, "op_role": 0, "ipu_index": 1}
    try:
        operator = Operator("power_and_root", {"X": ("x",)}, outputs, attributes)
        translations()["power_and_root"](Call(operator, values, {}))
    finally:
        unregister_operator("power_and_root")

    assert values["p"].tolist() == [16.0, 81.0] and values["r"].tolist() == [2.0, 3.0]
    assert "power_and_root" not in translations()


def test_only_something_that_can_be_called_can_be_registered() -> None:
    with pytest.raises(OperandTypeError, match="cannot be called"):
        register_operator("power", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "least", "steepest"),
    [(torch.float32, 1e-7, 1e-10), (torch.float16, 6.104e-05, 6.104e-05)],
)
def test_custom_nll_loss_of_a_share_of_zero_is_finite(
    dtype: torch.dtype, least: float, steepest: float
) -> None:
    shares = torch.tensor([[0.0, 1.0], [0.25, 0.75]], dtype=dtype, requires_grad=True)

    out = _computed("custom_nll_loss", shares, torch.tensor([0, 0]), reduction=0)

    assert out is not None
    expected = -torch.tensor([least, 0.25], dtype=torch.float64).log().sum()
    torch.testing.assert_close(out.double(), expected.reshape(1), rtol=1e-3, atol=0)
    (gradient,) = torch.autograd.grad(out, shares)
    slopes = torch.tensor([[-1 / steepest, 0.0], [-4.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gradient.double(), slopes, rtol=1e-3, atol=0)


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "ELMAN"])
def test_a_recurrent_operator_without_its_states_is_refused(mode: str) -> None:
    operator = Operator("rnn", {"Input": ("x",)}, {"Out": ("out",)}, {"mode": mode})

    with pytest.raises(OperandError, match=f"{mode}.* with 0 states"):
        translations()["rnn"](Call(operator, {"x": torch.zeros(1, 1, 1)}, {}))
