"""Appendix D of the specification, operator by operator, and what is not in it; strict mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch

torch.manual_seed(0)
X = torch.rand(4, 6) * 0.8 + 0.1
IMAGE = torch.rand(2, 4, 6, 6)
LINE = torch.rand(2, 4, 6)
CUBE = torch.rand(2, 4, 4, 4, 4)
INDEX = torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0], [3] * 6, [0] * 6])
WHOLE = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)

#: What a line of the appendix lists, as calls on X.
UNARY = """
    abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor frac log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc isnan
    all any amax amin argmax argmin count_nonzero mean median prod std std_mean sum var var_mean
    max min argsort sort t squeeze norm ones_like zeros_like
"""
BINARY = """
    add sub mul div true_divide floor_divide fmod remainder pow eq ge gt le lt ne max min
    logical_and logical_or cdist
"""
ACTIVATIONS = """
    ELU CELU GELU Hardshrink LeakyReLU LogSoftmax Mish ReLU SELU SiLU Sigmoid Softmax Softplus
    Softsign Softshrink Tanh PReLU RReLU Hardtanh GLU
"""

Call = tuple[Callable[..., Any], tuple[Any, ...]]

CALLS: dict[str, Call] = {
    **{name: (getattr(torch, name), (X,)) for name in UNARY.split()},
    **{f"{name} of two": (getattr(torch, name), (X, X.flip(1))) for name in BINARY.split()},
    **{
        name: (getattr(nn, name)(-1) if name.endswith("Softmax") else getattr(nn, name)(), (X,))
        for name in ACTIVATIONS.split()
    },
    # Creation
    "arange": (lambda x: x + torch.arange(6), (X,)),
    "fill": (lambda x: x.clone().fill_(2.0), (X,)),
    "full": (lambda x: x + torch.full((6,), 2.0), (X,)),
    "full_like": (lambda x: torch.full_like(x, 2.0), (X,)),
    "new_ones, new_zeros": (lambda x: x.new_ones(6) + x.new_zeros(6), (X,)),
    "ones, zeros": (lambda x: x + torch.ones(6) + torch.zeros(6), (X,)),
    # Indexing and joining
    "bincount": (lambda i: torch.bincount(i, minlength=5), (INDEX[0],)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([0.3, 0.6])), (X,)),
    "cat, stack": (lambda x: (torch.cat([x, x]), torch.stack([x, x])), (X,)),
    "chunk, split, unbind": (lambda x: (x.chunk(2), x.split(3, 1), x.unbind()), (X,)),
    "gather": (lambda x, i: x.gather(0, i), (X, INDEX)),
    "index_select": (lambda x, i: x.index_select(0, i), (X, INDEX[0])),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x, "amax"), (X, INDEX[:, 0])),
    "index_fill_": (lambda x, i: x.clone().index_fill_(0, i, 1.0), (X, INDEX[:2, 0])),
    "reshape, roll": (lambda x: (x.reshape(6, 4), x.roll(1)), (X,)),
    "scatter": (lambda x, i: x.scatter(0, i, x), (X, INDEX)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), (X, INDEX)),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "sum"), (X, INDEX)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 0), (X, INDEX)),
    "transpose, unsqueeze": (lambda x: (x.transpose(0, 1), x.unsqueeze(1)), (X,)),
    "where, masked_fill": (
        lambda x: (torch.where(x > 0.5, x, -x), x.masked_fill(x > 0.5, 0)),
        (X,),
    ),
    "expand, expand_as": (lambda x: (x[:1].expand(4, 6), x[:1].expand_as(x)), (X,)),
    # Pointwise
    "addcdiv": (lambda x: torch.addcdiv(x, x, x), (X,)),
    "bitwise": (lambda i: (i & 3, i | 3, i ^ 3, ~i), (WHOLE,)),
    "clamp": (lambda x: (x.clamp(0.2, 0.6), x.clamp_min(0.2), x.clamp_max(0.6)), (X,)),
    # Reductions and comparisons
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "topk": (lambda x: x.topk(2), (X,)),
    # Products
    "matrix_norm, vector_norm": (
        lambda x: (torch.linalg.matrix_norm(x), torch.linalg.vector_norm(x), torch.linalg.norm(x)),
        (X,),
    ),
    "cumsum, cumprod": (lambda x: (x.cumsum(0), x.cumprod(0)), (X,)),
    "cross": (lambda x: torch.cross(x[:, :3], x[:, 3:], dim=1), (X,)),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), (X,)),
    "cartesian_prod": (lambda x: torch.cartesian_prod(x[0], x[1]), (X,)),
    "tensordot, einsum": (
        lambda x: (torch.tensordot(x, x, ([1], [1])), torch.einsum("ij,kj->ik", x, x)),
        (X,),
    ),
    "addmm, matmul, bmm": (
        lambda x: (torch.addmm(x @ x.t(), x, x.t()), torch.bmm(x[None], x.t()[None])),
        (X,),
    ),
    "addmv, baddbmm": (
        lambda x: (torch.addmv(x[:, 0], x, x[0]), torch.baddbmm(x[None], x[None, :, :4], x[None])),
        (X,),
    ),
    "attention that masks all of a row": (
        lambda x: F.scaled_dot_product_attention(
            *[x[None, None].requires_grad_()] * 3, attn_mask=x @ x.t() > 2, dropout_p=1e-9
        ),
        (X,),
    ),
    "unfold": (lambda x: x.unfold(1, 3, 1), (X,)),
    "diag, nansum": (lambda x: (torch.diag(x), torch.nansum(x)), (X,)),
    # Layers
    "Fold, Unfold": (lambda x: F.fold(F.unfold(x, 2), (6, 6), 2), (IMAGE,)),
    "Conv1d": (nn.Conv1d(4, 3, 3), (LINE,)),
    "Conv2d": (nn.Conv2d(4, 3, 3), (IMAGE,)),
    "Conv3d": (nn.Conv3d(4, 3, 3), (CUBE,)),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 3, 3), (LINE,)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 3, 3), (IMAGE,)),
    "ConvTranspose3d": (nn.ConvTranspose3d(4, 3, 3), (CUBE,)),
    "MaxPool1d": (nn.MaxPool1d(2), (LINE,)),
    "MaxPool2d": (nn.MaxPool2d(2), (IMAGE,)),
    "MaxPool3d": (nn.MaxPool3d(2), (CUBE,)),
    "AvgPool1d": (nn.AvgPool1d(2), (LINE,)),
    "AvgPool2d": (nn.AvgPool2d(2), (IMAGE,)),
    "AvgPool3d": (nn.AvgPool3d(2), (CUBE,)),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d(2), (LINE,)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(2), (IMAGE,)),
    "AdaptiveAvgPool3d": (nn.AdaptiveAvgPool3d(2), (CUBE,)),
    "ReflectionPad2d": (nn.ReflectionPad2d(1), (IMAGE,)),
    "ReplicationPad3d": (nn.ReplicationPad3d(1), (CUBE,)),
    "ConstantPad, ZeroPad": (nn.ZeroPad2d(1), (IMAGE,)),
    "Threshold": (nn.Threshold(0.5, 0.0), (X,)),
    "BatchNorm2d": (nn.BatchNorm2d(4), (IMAGE,)),
    "LayerNorm": (nn.LayerNorm(6), (X,)),
    "GroupNorm": (nn.GroupNorm(2, 4), (IMAGE,)),
    "InstanceNorm2d": (nn.InstanceNorm2d(4, affine=True), (IMAGE,)),
    "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (X,)),
    "RNN": (nn.RNN(6, 3), (LINE,)),
    "GRU": (nn.GRU(6, 3), (LINE,)),
    "LSTM": (nn.LSTM(6, 3), (LINE,)),
    "Identity, Linear": (nn.Sequential(nn.Identity(), nn.Linear(6, 3)), (X,)),
    "Bilinear": (nn.Bilinear(6, 6, 3), (X, X)),
    "dropout, off": (nn.Dropout(0.5).eval(), (X,)),
    "Embedding": (nn.Embedding(5, 3), (INDEX,)),
    "EmbeddingBag": (nn.EmbeddingBag(5, 3), (INDEX,)),
    "one_hot": (lambda i: F.one_hot(i, 5), (INDEX,)),
    "Upsample nearest": (nn.Upsample(scale_factor=2), (IMAGE,)),
    "Upsample bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (IMAGE,)),
    "Upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,)),
    # Losses
    "cross_entropy": (F.cross_entropy, (X, INDEX[:, 0])),
    "nll_loss": (lambda x, i: F.nll_loss(x.log_softmax(1), i), (X, INDEX[:, 0])),
    "l1_loss, mse_loss": (lambda x: (F.l1_loss(x, x * 2), F.mse_loss(x, x * 2)), (X,)),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, x * 2), (X,)),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, x.round()), (X,)),
    "kl_div, poisson_nll_loss": (
        lambda x: (F.kl_div(x.log(), x, reduction="sum"), F.poisson_nll_loss(x, x)),
        (X,),
    ),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, x.round() * 2 - 1), (X,)),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, x.round() * 2 - 1), (X,)),
    "multilabel_soft_margin_loss": (lambda x: F.multilabel_soft_margin_loss(x, x.round()), (X,)),
    "triplet_margin_loss": (lambda x: F.triplet_margin_loss(x, x * 2, x * 3), (X,)),
}

UNSUPPORTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan_to_num": torch.nan_to_num,
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "fmin": lambda x: torch.fmin(x, x),
    "triu": torch.triu,
    "grid_sampler_2d": lambda x: F.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2) + x[0, 0], align_corners=False
    ),
    "linalg_inv_ex": lambda x: torch.linalg.inv(x @ x.t()),
}


class Calls(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: torch.Tensor) -> Any:
        return self.call(*args)


def strict() -> poptorch.Options:
    options = poptorch.Options().strict().showCompilationProgressBar(False)
    return options.engine("reference")


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_of_the_appendix_is_accepted_and_right(name: str) -> None:
    call, args = CALLS[name]
    model = Calls(call).eval()

    results = poptorch.inferenceModel(model, strict())(*args)

    for mine, eager in zip(flat(results), flat(model(*args)), strict=True):
        torch.testing.assert_close(mine, eager.detach(), check_dtype=False, equal_nan=True)


DRAWS: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
    "bernoulli": (lambda: torch.bernoulli(torch.full((4000,), 0.3)), 0.3),
    "randn": (lambda: torch.randn(4000), 0.0),
    "normal": (lambda: torch.normal(3.0, 1.0, (4000,)), 3.0),
    "rand": (lambda: torch.rand(4000), 0.5),
    "uniform": (lambda: torch.empty(4000).uniform_(0, 4), 2.0),
    "exponential": (lambda: torch.empty(4000).exponential_(2.0), 0.5),
    "randperm": (lambda: torch.randperm(4000).float(), 1999.5),
    "Bernoulli": (lambda: torch.distributions.Bernoulli(0.3).sample((4000,)), 0.3),
    "Normal": (lambda: torch.distributions.Normal(3.0, 1.0).sample((4000,)), 3.0),
    "Uniform": (lambda: torch.distributions.Uniform(0.0, 4.0).sample((4000,)), 2.0),
    "Exponential": (lambda: torch.distributions.Exponential(2.0).sample((4000,)), 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_random_operator_of_the_appendix_has_the_mean_of_its_distribution(name: str) -> None:
    draw, mean = DRAWS[name]

    drawn = poptorch.inferenceModel(Calls(draw), strict().randomSeed(8))()

    assert drawn.float().mean().item() == pytest.approx(mean, abs=0.1)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operator_outside_the_appendix_is_refused_by_name(name: str) -> None:
    executor = poptorch.inferenceModel(Calls(UNSUPPORTED[name]), strict())

    with pytest.raises(poptorch.Error, match=rf"Unsupported ops .* \[.*aten::{name}"):
        executor(X)


def test_without_strict_mode_every_operator_is_there() -> None:
    options = poptorch.Options().strict(False).engine("reference")

    assert torch.equal(poptorch.inferenceModel(Calls(torch.lgamma), options)(X), torch.lgamma(X))


def test_what_is_made_of_constants_may_use_any_operator() -> None:
    model = Calls(lambda x: x + torch.ones(6, 6).triu()[:4])

    assert torch.equal(poptorch.inferenceModel(model, strict())(X), model(X))


def test_the_gradient_of_an_operator_is_supported_with_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(F.max_pool2d(self.layer(x), 2), "mean")

    model = Model()
    before = model.layer.weight.detach().clone()

    poptorch.trainingModel(model, strict())(IMAGE)

    assert not torch.equal(model.layer.weight, before)
