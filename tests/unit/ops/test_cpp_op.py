"""A real C++ op: compiled here, loaded with torch, called through `custom_op`.

It uses torch's stable interface, whose headers compile in two seconds.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from pantile.lowering.compiler import find_compiler

SOURCE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

// scale * x ** power
Tensor scaled_power(const Tensor& x, double scale, int64_t power) {
  Tensor y = torch::stable::empty_like(x);
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    out[i] = scale;
    for (int64_t k = 0; k < power; ++k) out[i] *= in[i];
  }
  return y;
}

STABLE_TORCH_LIBRARY(DOMAIN, m) {
  m.def("ScaledPower(Tensor x, float scale, int power) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(DOMAIN, CPU, m) {
  m.impl("ScaledPower", TORCH_BOX(&scaled_power));
}
"""

_domains = itertools.count()


@pytest.fixture(scope="module")
def domain(tmp_path_factory) -> str:
    """The domain of a library that was compiled and loaded for this module."""
    name = f"pantile_test_{next(_domains)}"
    folder = tmp_path_factory.mktemp("cpp")
    source, library = folder / "op.cpp", folder / "libop.so"
    source.write_text(SOURCE.replace("DOMAIN", name))
    torch_folder = Path(torch.__file__).parent
    command = [find_compiler(), "-std=c++20", "-O1", "-shared", "-fPIC", str(source)]
    command += ["-I", str(torch_folder / "include"), "-L", str(torch_folder / "lib")]
    subprocess.run([*command, "-ltorch_cpu", "-lc10", "-o", str(library)], check=True)
    torch.ops.load_library(library)
    return name


class Powers(nn.Module):
    """A trained factor inside a C++ op."""

    def __init__(self, domain: str) -> None:
        super().__init__()
        self.domain = domain
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attributes = {"scale": 3.0, "power": 2}
        (y,) = poptorch.custom_op([x * self.weight], "ScaledPower", self.domain, 1, [x], attributes)
        return poptorch.identity_loss(y, reduction="sum")


@pytest.mark.parametrize("engine", ["reference", pytest.param("native", marks=pytest.mark.slow)])
def test_a_cpp_op_runs_in_the_middle_of_a_graph(domain, engine):
    options = poptorch.Options().deviceIterations(2).engine(engine)
    executor = poptorch.inferenceModel(Powers(domain), options)
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

    result = executor(x)

    expected = (3 * (x * torch.tensor([0.5, -1.0, 2.0])) ** 2).sum(1)
    assert torch.allclose(result, expected)
    assert torch.allclose(executor(x), expected)


def test_a_cpp_op_is_trained_with_the_gradient_registered_for_it(domain):
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.scale * ctx.power * x ** (ctx.power - 1), None, None

    def keep(ctx, inputs, output):
        x, ctx.scale, ctx.power = inputs
        ctx.save_for_backward(x)

    torch.library.register_autograd(f"{domain}::ScaledPower", backward, setup_context=keep)
    model = Powers(domain)
    x = torch.tensor([1.0, 2.0, 3.0])
    step = poptorch.trainingModel(
        model,
        poptorch.Options().engine("reference"),
        torch.optim.SGD(model.parameters(), lr=0.01),
    )

    step(x)

    weight = torch.tensor([0.5, -1.0, 2.0])
    assert torch.allclose(model.weight, weight - 0.01 * 3 * 2 * x * x * weight)
