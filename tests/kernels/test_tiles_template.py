"""Products in tiles against float64: in software, and on the unit for matrices if there is one."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from tests.kernels.test_gemm_of_halves import TYPES, Case, kernel
from tests.kernels.test_gemm_template import (
    GEMM,
    ORDERS,
    Shape,
    assert_close,
    compile_program,
    pointer,
    run,
)

from pantile.lowering.kernels.matrix_unit import is_granted

FLOATS: list[Shape] = [
    (1, 1, 1), (2, 17, 9), (5, 1, 33), (16, 64, 32), (17, 33, 15), (31, 16, 65), (32, 32, 32),
    (20, 70, 2100), (150, 136, 130), (67, 65, 300), (300, 70, 700),
]  # fmt: skip
HALVES: list[Shape] = [(1, 70, 48), (16, 10, 128), (64, 96, 64), (67, 65, 301), (20, 70, 2100)]
MIXED = (("fp16", "fp16"), ("float", "bf16"), ("fp16", "float"))

CASES: list[Case] = [
    *((shape, order, "float", "float") for shape in FLOATS for order in ORDERS),
    *((shape, order, "bf16", "bf16") for shape in HALVES for order in ORDERS),
    *(((67, 65, 301), order, *types) for types in MIXED for order in ORDERS),
]
TEMPLATES = ("math.h", "halves.h", "lanes.h", "pairs.h", *GEMM, "tiles.h")

KEPT = """
using KeptGemm = Gemm<19, 70, 131, 131, 1, 1, 131, false, false, false, true>;
extern "C" i64 kept_floats() { return KeptGemm::kept_floats; }
extern "C" i64 scratch_900() { return KeptGemm::scratch; }
extern "C" void pack_kept(const float* B, float* to) {
  for (int t = 0; t < 3; t++) gemm_pack<KeptGemm>(B, to, t, 3);
}
extern "C" void run_900(const float* A, const float* B, float* C, float* scratch, int t, int T) {
  auto add = [&](int m, int n0, int count, const float* row) INLINE_CALL {
    LANEWISE for (int j = 0; j < count; j++) C[m * 70 + n0 + j] += row[j];
  };
  gemm_kept<KeptGemm>(A, B, B, scratch, t, T, add);
}
"""

_TILES = ("-DPANTILE_TILES", "-DPANTILE_ONLY_TILES")
UNIT_OPTIONS = {"software": (*_TILES, "-DPANTILE_TILES_IN_SOFTWARE"), "unit": _TILES}
needs_unit = pytest.mark.skipif(not is_granted(), reason="this CPU has no unit for matrices")
UNITS = ["software", pytest.param("unit", marks=needs_unit)]


@pytest.fixture(scope="module", params=UNITS)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    source = "".join(kernel(number, case) for number, case in enumerate(CASES)) + KEPT
    options = UNIT_OPTIONS[request.param]
    return compile_program(tmp_path_factory.mktemp("tiles"), TEMPLATES, source, *options)


def stored(matrix: torch.Tensor, side: str) -> torch.Tensor:
    return matrix.t().contiguous() if side == "t" else matrix


def product(program: ctypes.CDLL, case: Case, threads: int) -> tuple[torch.Tensor, ...]:
    (M, N, K), order, left, right = case
    a, b = torch.randn(M, K).to(TYPES[left]), torch.randn(K, N).to(TYPES[right])
    name = f"run_{CASES.index(case)}"
    result = run(program, name, stored(a, order[0]), stored(b, order[1]), M * N, threads)
    return result.view(M, N), a, b


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_in_tiles_equals_float64(program: ctypes.CDLL, case: Case) -> None:
    assert getattr(program, f"kind_{CASES.index(case)}")() == 3

    for threads in (1, 3):
        assert_close(*product(program, case, threads))


def test_floats_lose_no_more_digits_than_eager(program: ctypes.CDLL) -> None:
    result, a, b = product(program, ((300, 70, 700), "nn", "float", "float"), 1)
    right = a.double() @ b.double()

    assert (result - right).norm() <= ((a @ b) - right).norm()


@pytest.mark.parametrize("order", ORDERS)
def test_every_thread_count_gives_the_same_bits(program: ctypes.CDLL, order: str) -> None:
    name = f"run_{CASES.index(((150, 136, 130), order, 'float', 'float'))}"
    a, b = torch.randn(150 * 130), torch.randn(130 * 136)

    results = [run(program, name, a, b, 150 * 136, T) for T in (1, 1, 2, 5)]

    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_operand_that_was_packed_before_gives_the_same(program: ctypes.CDLL) -> None:
    program.kept_floats.restype = ctypes.c_long
    a, b = torch.randn(19, 131), torch.randn(131, 70)
    lies = b.t().contiguous()
    packed = torch.full((program.kept_floats(),), float("nan"))

    program.pack_kept(pointer(lies), pointer(packed))

    assert_close(run(program, "run_900", a, packed, 19 * 70, 2).view(19, 70), a, b)


@needs_unit
def test_software_gives_the_bits_of_the_unit(tmp_path: Path) -> None:
    cases = [CASES.index(case) for case in CASES if case[0] in ((67, 65, 300), (67, 65, 301))]
    source = "".join(kernel(number, CASES[number]) for number in cases)
    programs = []
    for unit, options in UNIT_OPTIONS.items():
        (tmp_path / unit).mkdir()
        programs.append(compile_program(tmp_path / unit, TEMPLATES, source, *options))

    for number in cases:
        (M, N, K), order, left, right = CASES[number]
        a, b = torch.randn(M, K).to(TYPES[left]), torch.randn(K, N).to(TYPES[right])
        given = stored(a, order[0]), stored(b, order[1])
        first, second = (run(program, f"run_{number}", *given, M * N, 1) for program in programs)
        assert torch.equal(first, second)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_not_finite_stays_in_its_row_and_column(program: ctypes.CDLL, order: str) -> None:
    number = CASES.index(((17, 33, 15), order, "float", "float"))
    a, b = torch.randn(17, 15), torch.randn(15, 33)
    a[3, 4], b[7, 32] = float("nan"), float("inf")
    given = stored(a, order[0]), stored(b, order[1])

    result = run(program, f"run_{number}", *given, 17 * 33, 2).view(17, 33)

    assert torch.equal(result.isfinite(), (a @ b).isfinite())


def test_numbers_of_any_size_keep_their_digits(program: ctypes.CDLL) -> None:
    case = ((31, 16, 65), "nn", "float", "float")
    a = torch.randn(31, 65) * 10.0 ** torch.randint(-15, 15, (31, 1))
    b = torch.randn(65, 16) * 10.0 ** torch.randint(-15, 15, (1, 16))

    result = run(program, f"run_{CASES.index(case)}", a, b, 31 * 16, 1).view(31, 16)

    assert_close(result, a, b)
