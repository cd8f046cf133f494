"""The matrix-product template against float64: every plan, odd sizes, all operand orders."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path

import pytest
import torch

import pantile
from pantile.lowering.kernels.build import flags

TEMPLATES = Path(pantile.__file__).parent / "lowering" / "kernels" / "templates"

Shape = tuple[int, int, int]  # M, N, K
ORDERS = ("nn", "nt", "tn", "tt")  # t: the operand is stored transposed

SHAPES: list[Shape] = [
    (1, 1, 1), (1, 1, 37), (1, 5, 3), (2, 17, 9), (5, 1, 33), (40, 1, 3), (1, 128, 200),
    (1, 70, 48), (3, 130, 19), (8, 32, 100), (16, 10, 128), (16, 128, 64), (128, 64, 16),
    (10, 128, 16), (20, 70, 2100), (300, 70, 700), (1, 1000, 300), (3, 5, 4096), (17, 33, 15),
    (31, 16, 65), (100, 200, 8), (150, 136, 130), (67, 65, 300), (50, 70, 32), (50, 70, 33),
    (77, 133, 257),
]  # fmt: skip
THREADS = (1, 2, 5)
GEMM = ("gemm_plan.h", "gemm_tile.h", "gemm.h")

KERNEL = """
extern "C" i64 scratch_{i}() {{ return Gemm<{args}>::scratch; }}
extern "C" int kind_{i}() {{ return Gemm<{args}>::plan.kind; }}
extern "C" void run_{i}(const float* A, const float* B, float* C, float* scratch, int t, int T) {{
  auto add = [&](int m, int n0, int count, const float* row) INLINE_CALL {{
    LANEWISE for (int j = 0; j < count; j++) C[m * {N} + n0 + j] += row[j];
  }};
  gemm<Gemm<{args}>>(A, B, scratch, t, T, add, Ahead{{{N}, 1, {{C}}}});
}}
"""

BATCHED = """
extern "C" void batched_{i}(const float* A, const float* B, float* C, float* scratch, int t,
                            int T) {{
  gemm_batched<Gemm<{args}>, {batch}, {M} * {K}, {K} * {N}>(
      A, B, scratch, t, T, [&](int b, int m, int n0, int count, const float* row) INLINE_CALL {{
        LANEWISE for (int j = 0; j < count; j++) C[(b * {M} + m) * {N} + n0 + j] += row[j];
      }});
}}
"""
BATCHES = ((3, 7, 20, 12), (8, 16, 16, 24), (1, 9, 33, 5))  # batch, M, N, K


def compile_program(
    folder: Path, templates: tuple[str, ...], source: str, *more: str
) -> ctypes.CDLL:
    text = "\n".join((TEMPLATES / name).read_text() for name in ("vector.h", *templates))
    (folder / "program.cpp").write_text(text + source)
    library = folder / "program.so"
    command = ["g++", *flags(), "-shared", *more, str(folder / "program.cpp"), "-o", str(library)]
    subprocess.run(command, check=True, timeout=250)
    return ctypes.CDLL(str(library))


def strides(order: str, M: int, N: int, K: int) -> tuple[int, int, int, int]:
    a = (1, M) if order[0] == "t" else (K, 1)
    b = (1, K) if order[1] == "t" else (N, 1)
    return (*a, *b)


def arguments(case: tuple[Shape, str]) -> str:
    (M, N, K), order = case
    return ", ".join(map(str, (M, N, K, *strides(order, M, N, K))))


CASES = list(itertools.product(SHAPES, ORDERS))
NARROW = [case for case in CASES if case[0] in ((1, 70, 48), (16, 10, 128), (67, 65, 300))]


def kernels(cases: list[tuple[Shape, str]]) -> str:
    return "".join(
        KERNEL.format(i=CASES.index(case), args=arguments(case), N=case[0][1]) for case in cases
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = kernels(CASES)
    # Gapped strides: A is every third column of a wider matrix, B every second row and column.
    source += KERNEL.format(i=900, args="21, 37, 18, 60, 3, 160, 2", N=37)
    for i, (batch, M, N, K) in enumerate(BATCHES):
        args = f"{M}, {N}, {K}, {K}, 1, {N}, 1"
        source += f'extern "C" i64 batched_scratch_{i}() {{ return Gemm<{args}>::scratch; }}'
        source += BATCHED.format(i=i, args=args, batch=batch, M=M, N=N, K=K)
    return compile_program(tmp_path_factory.mktemp("gemm"), ("lanes.h", *GEMM), source)


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def run(
    program: ctypes.CDLL, name: str, a: torch.Tensor, b: torch.Tensor, size: int, threads: int
) -> torch.Tensor:
    prefix, number = name.rsplit("_", 1)
    floats = getattr(program, f"{'batched_' * (prefix == 'batched')}scratch_{number}")
    floats.restype = ctypes.c_long
    guard = 64
    result = torch.zeros(size)
    for t in range(threads):
        scratch = torch.full((floats() + guard,), float("nan"))
        scratch[floats() :] = 7.0
        getattr(program, name)(
            pointer(a), pointer(b), pointer(result), pointer(scratch), t, threads
        )
        assert (scratch[floats() :] == 7.0).all(), "wrote beyond the scratch it asked for"
    return result


def assert_close(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = a.double() @ b.double()
    bound = (a.double().abs() @ b.double().abs()) * 2e-6 + 1e-30
    assert ((result.double() - expected).abs() <= bound).all()


def check(program: ctypes.CDLL, case: tuple[Shape, str], threads: int) -> None:
    (M, N, K), order = case
    a, b = torch.randn(M, K), torch.randn(K, N)
    stored_a = a.t().contiguous() if order[0] == "t" else a
    stored_b = b.t().contiguous() if order[1] == "t" else b
    result = run(program, f"run_{CASES.index(case)}", stored_a, stored_b, M * N, threads)
    assert_close(result.view(M, N), a, b)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product_equals_float64_for_every_order_of_the_operands(
    program: ctypes.CDLL, case: tuple[Shape, str], threads: int
) -> None:
    check(program, case, threads)


@pytest.mark.parametrize("order", ORDERS)
def test_every_run_and_thread_count_gives_the_same_bits(program: ctypes.CDLL, order: str) -> None:
    number = CASES.index(((150, 136, 130), order))
    a, b = torch.randn(150, 130), torch.randn(130, 136)
    results = [run(program, f"run_{number}", a, b, 150 * 136, T) for T in (1, 1, 2, 3, 5)]
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("narrower", [("-mno-avx512f",), ("-mno-avx",)], ids=["avx", "sse"])
def test_product_equals_float64_with_narrower_vectors(
    tmp_path: Path, narrower: tuple[str, ...]
) -> None:
    narrow = compile_program(tmp_path, ("lanes.h", *GEMM), kernels(NARROW), *narrower)
    for case in NARROW:
        check(narrow, case, threads=2)


@pytest.mark.parametrize("threads", THREADS)
def test_operands_may_have_gaps_in_both_directions(program: ctypes.CDLL, threads: int) -> None:
    a, b = torch.randn(21, 60), torch.randn(2 * 18, 80)
    result = run(program, "run_900", a, b, 21 * 37, threads)
    assert_close(result.view(21, 37), a[:, :54:3], b[::2, :74:2])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("number", "shape"), list(enumerate(BATCHES)), ids=str)
def test_a_batch_of_products_equals_float64(
    program: ctypes.CDLL, number: int, shape: tuple[int, int, int, int], threads: int
) -> None:
    batch, M, N, K = shape
    a, b = torch.randn(batch, M, K), torch.randn(batch, K, N)
    result = run(program, f"batched_{number}", a, b, batch * M * N, threads)
    assert_close(result.view(batch, M, N), a, b)


def test_the_cases_use_every_plan(program: ctypes.CDLL) -> None:
    kinds = {getattr(program, f"kind_{i}")() for i in range(len(CASES))}
    assert kinds == {0, 1, 2}


@pytest.mark.parametrize("order", ORDERS)
def test_a_nan_stays_in_its_row_and_column(program: ctypes.CDLL, order: str) -> None:
    number = CASES.index(((17, 33, 15), order))
    a, b = torch.randn(17, 15), torch.randn(15, 33)
    a[3, 4] = float("nan")
    b[7, 32] = float("inf")
    stored_a = a.t().contiguous() if order[0] == "t" else a
    stored_b = b.t().contiguous() if order[1] == "t" else b
    result = run(program, f"run_{number}", stored_a, stored_b, 17 * 33, 2).view(17, 33)
    assert torch.equal(result.isfinite(), (a @ b).isfinite())
