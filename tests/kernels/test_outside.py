"""Operators without a rule are called between kernels: our memory goes in, torch's comes out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.programs import copied
from torch import nn

import poptorch
from pantile.lowering.kernels.build import build
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.load import NativeProgram, NativeRun
from pantile.lowering.prepare import prepare
from pantile.lowering.segments.search import Mixed, mixed
from pantile.program.program import Program

Tensors = Sequence[torch.Tensor]


class Function(nn.Module):
    """Runs a function as its forward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """The function."""
        return self.function(*args)


def program_of(function: Callable[..., Any], inputs: Tensors) -> Program:
    """What is compiled of a function."""
    model = poptorch.inferenceModel(Function(function), poptorch.Options().engine("reference"))
    model(*inputs)
    return prepare(model._compiled[0].program).program


class Checked:
    """A program that counts its kernels, and fills its memory with NaN before each run."""

    def __init__(self, found: Mixed, outputs: int) -> None:
        program = NativeProgram(build(found.texts(), checked=True), found.calls())
        self._library: Any = program.library
        self._library.pantile_kernels_run.argtypes = [ctypes.c_void_p]
        self._library.pantile_kernels_run.restype = ctypes.c_long
        self._library.pantile_kernels.restype = ctypes.c_long
        self._run = NativeRun(program, outputs)
        self._ran = 0

    def __call__(self, inputs: Tensors, threads: int) -> list[torch.Tensor]:
        """Results of a run on copies."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            results = [x.clone() for x in self._run.run([copied(x) for x in inputs])]
        finally:
            torch.set_num_threads(before)
        ran = self._library.pantile_kernels_run(self._run._context)
        assert ran - self._ran == self._library.pantile_kernels(), "not all kernels ran"
        self._ran = ran
        return results


def check(function: Callable[..., Any], *inputs: torch.Tensor, called: set[str]) -> None:
    """A function must call these operators, and give eager's results with one thread and two."""
    found = mixed(program_of(function, inputs), (), "segments")
    expected = function(*inputs)
    expected = (expected,) if isinstance(expected, torch.Tensor) else tuple(expected)
    run = Checked(found, len(expected))

    assert {fact["operator"] for fact in found.facts()["outside"]} == called
    for threads in (1, 2, 1):
        torch.testing.assert_close(run(inputs, threads), list(expected), rtol=1e-4, atol=1e-5)


def rand(*shape: int) -> torch.Tensor:
    """Numbers of a fixed seed."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def positive(size: int) -> torch.Tensor:
    """A matrix with a Cholesky factor."""
    root = rand(size, size)
    return root @ root.t() + torch.eye(size)


def several(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Calls one after another, results that are used by kernels, calls, and nobody else."""
    values, vectors = torch.linalg.eigh(a * 2)
    inverse = torch.linalg.inv(torch.relu(b) + 3 * torch.eye(6))
    middle = torch.median(c + 1, dim=1)
    return vectors @ inverse + values, middle.values * 2, middle.indices, torch.special.i1(c)


def test_results_of_calls_reach_kernels_calls_and_the_caller() -> None:
    called = {"_linalg_eigh", "linalg_inv_ex", "_linalg_check_errors", "special_i1"}

    check(
        several,
        positive(6),
        rand(6, 6),
        rand(5, 7),
        called={f"aten.{name}.default" for name in called} | {"aten.median.dim"},
    )


def strided(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Operands that are views: of kernels' memory, of an input, and of nothing that is strided."""
    made = (x * 2)[1:, ::2].t()
    return (
        torch.special.i1(made) + 1,
        torch.special.i0e(y[2].expand(3, -1)) * 2,
        torch.special.i1e((x + 1).t().reshape(-1)) + 1,
    )


def test_views_are_given_as_they_lie() -> None:
    names = ("special_i1", "special_i0e", "special_i1e")

    check(strided, rand(6, 8), rand(3, 5), called={f"aten.{name}.default" for name in names})


def waves(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Complex numbers, which no kernel knows, from call to call."""
    spectrum = torch.fft.rfft(x * 2) * torch.fft.rfft(kernel, n=x.shape[-1])
    return torch.fft.irfft(spectrum.conj() * 0.5, n=x.shape[-1]) + x


def test_complex_numbers_stay_outside() -> None:
    x, kernel = rand(4, 32), rand(32)
    found = mixed(program_of(waves, (x, kernel)), (), "segments")

    (result,) = Checked(found, 1)([x, kernel], 2)

    torch.testing.assert_close(result, waves(x, kernel))
    assert any("complex64" in why for why in found.left.values())


def halves(x: torch.Tensor) -> torch.Tensor:
    """A call with numbers of 16 bits."""
    return torch.logcumsumexp(x * 2, 1) + 1


def test_halves_are_given_as_they_are_stored() -> None:
    check(halves, rand(3, 9).bfloat16(), called={"aten.logcumsumexp.default"})


def test_a_result_that_shares_memory_with_an_operand_is_copied() -> None:
    """The place of the operand in the arena is soon taken by something else."""
    found = mixed(program_of(waves, (rand(4, 32), rand(32))), (), "segments")
    views = [call for call in found.calls() if "conj" in call["operator"]]
    x = torch.view_as_complex(rand(8, 2))

    from pantile.lowering.calls import _settled

    conjugate = torch.ops.aten._conj.default(x)
    settled = _settled(conjugate, conjugate.stride(), [x])

    assert views
    assert settled.data_ptr() != x.data_ptr()
    assert torch.equal(settled, x.conj())


class Whitened(nn.Module):
    """A check, a call with a buffer of the model, and statistics that are written after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Independent columns."""
        h = self.norm(x)
        factor = torch.linalg.cholesky(h.t() @ h + torch.diag(self.mean) + torch.eye(6))
        self.mean.copy_(0.5 * self.mean + torch.linalg.det(factor))
        return torch.linalg.solve_triangular(factor, h.t(), upper=False).t()


def test_an_input_is_not_written_before_a_call_has_read_it() -> None:
    x = rand(9, 6)
    native, eager = (Whitened() for _ in range(2))
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    model = poptorch.inferenceModel(native.train(), options)

    for _ in range(4):
        torch.testing.assert_close(model(x), eager(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(native.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    (facts,) = model.nativeDecisions()
    assert facts["lowering"] == "segments"


def test_pooling_whose_places_are_wanted_is_torchs_forward_and_backward() -> None:
    """Our own kernel makes no places."""

    def unpooled(x: torch.Tensor) -> torch.Tensor:
        values, places = F.max_pool2d(x * 2, 2, return_indices=True)
        return F.max_unpool2d(values + 1, places, 2)

    x = rand(2, 3, 8, 8)
    found = mixed(program_of(unpooled, (x,)), (), "segments")
    (result,) = Checked(found, 1)([x], 1)

    torch.testing.assert_close(result, unpooled(x))


def test_kernels_alone_refuse_and_name_the_operator() -> None:
    program = program_of(lambda x: torch.special.i1(x) + 1, (rand(4),))

    with pytest.raises(Refused, match=r"no rule for aten\.special_i1"):
        mixed(program, (), "kernels")


def test_sums_of_no_elements_are_those_of_torch() -> None:
    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), x.mean(1), x @ x.t() + 1

    x = torch.zeros(3, 0)
    found = mixed(program_of(sums, (x,)), (), "segments")
    results = Checked(found, 3)([x], 1)

    for result, own in zip(results, sums(x), strict=True):
        torch.testing.assert_close(result, own, equal_nan=True)
