"""Operators that torch has for inference of transformers, and gradients that have no formula."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check
from tests.native.runs import options
from torch import nn

import poptorch

aten = torch.ops.aten

HIDDEN = torch.tensor([[False, False, False, True, True], [False, False, False, False, False]])


def close_to_eager(module: nn.Module, *inputs: torch.Tensor, **masks: torch.Tensor) -> None:
    """Natively, by our kernels, what eager's operators give."""
    module.eval()
    model = poptorch.inferenceModel(module, options())
    model.compile(*inputs, **masks)
    assert [facts["lowering"] for facts in model.nativeDecisions()] == ["kernels"]
    with torch.no_grad():
        expected = module(*inputs, **masks)
    torch.testing.assert_close(model(*inputs, **masks), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masks", [{}, {"src_key_padding_mask": HIDDEN}], ids=["all", "padded"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_are_those_of_torch(norm_first: bool, masks) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 2, 24, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    close_to_eager(stack, torch.randn(2, 5, 16), **masks)


class Attention(nn.Module):
    def __init__(self, average: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, batch_first=True)
        self.average = average

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x, x, x, attn_mask=mask, average_attn_weights=self.average)


@pytest.mark.parametrize("average", [True, False])
def test_attention_with_a_mask_returns_the_weights_of_torch(average: bool) -> None:
    torch.manual_seed(0)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)

    close_to_eager(Attention(average), torch.randn(2, 5, 12), later)


def test_gradients_of_shrinking_and_of_borders_are_those_of_torch() -> None:
    x = torch.randn(3, 2, 4, 5)
    x[0, 0, 0, :2] = torch.tensor([0.5, -0.5])  # exactly at the edge

    def padded(name: str, x: torch.Tensor, padding: list[int]) -> Case:
        size = torch.nn.functional.pad(x, padding, mode="replicate").shape
        back = getattr(aten, f"{name}_backward").default
        return Case(name, lambda x, dy: back(dy, x, padding), (x, torch.randn(size)))

    check(
        [
            Case(
                "hard", lambda x, g: aten.hardshrink_backward(g, x, 0.5), (x, torch.randn_like(x))
            ),
            Case(
                "soft", lambda x, g: aten.softshrink_backward(g, x, 0.5), (x, torch.randn_like(x))
            ),
            Case("gate", lambda x: torch.nn.functional.glu(x, 2), (x,)),
            padded("replication_pad1d", torch.randn(2, 3, 6), [2, 1]),
            padded("replication_pad2d", x, [1, 3, 0, 2]),
            padded("replication_pad3d", x, [1, 1, 2, 0, 0, 3]),
        ]
    )


def test_gradients_of_products_with_zeros_are_those_of_torch() -> None:
    from pantile.ops.eager_kernels import prod_backward

    x = torch.randn(4, 5)
    x[1, 2] = x[2, 0] = x[2, 4] = 0  # one zero in a row, and two
    back = prod_backward._opoverload

    def gradient(dim: int | None, keep: bool) -> Case:
        shape = torch.ones(4, 5).sum(dim, keepdim=keep).shape if dim is not None else ()
        return Case(f"{dim}", lambda g, x: back(g, x, dim, keep), (torch.randn(shape), x))

    check([gradient(None, False), gradient(1, False), gradient(0, True), gradient(-1, True)])


def test_diagonals_windows_and_sums_of_products_are_those_of_torch() -> None:
    x = torch.randn(3, 5, 4)
    a, b = torch.randn(3, 2, 4), torch.randn(3, 4, 6)

    check(
        [
            Case("diagonal", lambda x: x.diagonal(1, 2, 0) * 2, (x,)),
            Case("below", lambda x: x.diagonal(-2, 1, 2) + 1, (x,)),
            Case("main", lambda x: torch.diagonal(x[0]).sin(), (x,)),
            Case("first", lambda x: x.diagonal(0, 0, 1) + 0, (x,)),
            Case("windows", lambda x: x.unfold(1, 3, 2) * 2, (x,)),
            Case("windows of the last", lambda x: x.unfold(-1, 2, 1).sum(-1), (x,)),
            Case("products", lambda y, a, b: torch.addbmm(y, a, b), (torch.randn(2, 6), a, b)),
        ]
    )


def test_a_bilinear_form_is_that_of_torch() -> None:
    a, b, w, bias = (torch.randn(size) for size in ((4, 3), (4, 5), (6, 3, 5), (6,)))

    check([Case("bilinear", torch.nn.functional.bilinear, (a, b, w, bias))])


def test_the_softmax_of_one_number_is_one() -> None:
    check([Case("one", lambda x: torch.softmax(x, 0), (torch.tensor(3.0),))])
