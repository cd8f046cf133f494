"""Code for CPUs without AVX-512, and for any 64-bit x86: this machine runs that, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.programs import Case, check, taken

import poptorch
from pantile.errors import ProgramError
from pantile.lowering.kernels.build import cpu


def gradients(function: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """The value of a function, and its gradients by its first arguments, the floats."""

    def whole(*given: torch.Tensor) -> list[torch.Tensor]:
        floats = [x for x in given if x.is_floating_point()]
        with torch.enable_grad():
            value, pull = torch.func.vjp(lambda *x: function(*x, *given[len(floats) :]), *floats)
        return [value, *pull(torch.cos(value))]

    return whole


def cases() -> list[Case]:
    """Each family of kernels, in sizes that no vector divides."""
    images, weight = torch.randn(3, 5, 11, 9), torch.randn(19, 5, 3, 3)
    rows, table = torch.randn(7, 37), torch.randn(23, 37)
    places, labels = torch.randint(0, 23, (4, 6)), torch.randint(0, 37, (7,))
    deep = torch.randn(13, 1, 3, 3)
    return [
        Case("convolution", gradients(lambda x, w: F.conv2d(x, w, padding=1)), (images, weight)),
        Case(
            "winograd",
            gradients(lambda x, w: F.conv2d(x, w, padding=1)),
            (torch.randn(2, 32, 9, 8), torch.randn(48, 32, 3, 3)),
        ),
        Case("strided", gradients(lambda x, w: F.conv2d(x, w, stride=2)), (images, weight)),
        Case(
            "depthwise",
            gradients(lambda x, w: F.conv2d(x, w, padding=1, groups=13)),
            (torch.randn(2, 13, 8, 7), deep),
        ),
        Case("pool", gradients(lambda x: F.max_pool2d(x, 3, 2, 1)), (images,)),
        Case("average", gradients(lambda x: F.avg_pool2d(x, 2)), (images,)),
        Case("product", gradients(lambda a, b: a @ b.t()), (rows, table)),
        Case("norm", gradients(lambda x: F.layer_norm(x, (37,))), (rows,)),
        Case("softmax", gradients(lambda x: F.softmax(x, 1)), (rows,)),
        Case("loss", gradients(F.cross_entropy), (rows, labels)),
        Case("lookup", gradients(lambda t, i: F.embedding(i, t)), (table, places)),
        Case("math", gradients(lambda x: torch.tanh(x) * F.gelu(x) + torch.sigmoid(x)), (rows,)),
        Case("turned", lambda x: x.t().contiguous(), (table,)),
        Case("sums", lambda x: [x.cumsum(1), x.amax(0), x.var(1)], (rows,)),
    ]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64"])
def test_every_family_gives_what_torch_gives(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CPU", target)
    torch.manual_seed(0)
    every = cases()

    assert [case.name for case in taken(every)] == [case.name for case in every]
    check(every)


def test_an_unknown_cpu_is_named_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CPU", "avx")

    with pytest.raises(ProgramError, match="x86-64-v3"):
        cpu()


def test_a_program_says_which_cpu_it_was_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CPU", "x86-64-v3")
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    layer = torch.nn.Linear(3, 2)
    model, x = poptorch.inferenceModel(layer, options), torch.randn(4, 3)

    for _ in range(2):
        result = model(x)

    torch.testing.assert_close(result, layer(x))
    [facts] = model.nativeDecisions()
    assert facts["cpu"] == "x86-64-v3"
