"""The matrix-product template with operands of 16 bits: every plan, all orders, mixed types."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from tests.kernels.test_gemm_template import (
    GEMM,
    KERNEL,
    ORDERS,
    Shape,
    arguments,
    assert_close,
    compile_program,
    run,
)

TEMPLATES = ("math.h", "halves.h", "lanes.h", "pairs.h", *GEMM)
TYPES = {"float": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES: list[Shape] = [(1, 70, 48), (16, 10, 128), (67, 65, 300), (20, 70, 2100), (5, 1, 33)]

Case = tuple[Shape, str, str, str]

CASES: list[Case] = [
    *((shape, order, "bf16", "bf16") for shape, order in itertools.product(SHAPES, ORDERS)),
    *(((67, 65, 301), order, "bf16", "bf16") for order in ORDERS),
    ((130, 200, 3001), "nn", "bf16", "bf16"),
    ((130, 200, 3000), "nt", "bf16", "bf16"),
    ((67, 65, 300), "nn", "float", "bf16"),
    ((67, 65, 300), "tt", "fp16", "float"),
]


def kernel(number: int, case: Case) -> str:
    shape, order, left, right = case
    flags = (left != "float", right != "float", left == right == "bf16")
    halves = ", ".join(str(flag).lower() for flag in flags)
    args = f"{arguments((shape, order))}, {halves}"
    text = KERNEL.format(i=number, args=args, N=shape[1])
    text = text.replace("const float* A", f"const {left}* A")
    return text.replace("const float* B", f"const {right}* B")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = "".join(kernel(number, case) for number, case in enumerate(CASES))
    folder = tmp_path_factory.mktemp("gemm-halves")
    return compile_program(folder, TEMPLATES, source)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_of_halves_is_summed_in_float(
    program: ctypes.CDLL, case: Case, threads: int
) -> None:
    (M, N, K), order, left, right = case
    a, b = torch.randn(M, K).to(TYPES[left]), torch.randn(K, N).to(TYPES[right])
    stored_a = a.t().contiguous() if order[0] == "t" else a
    stored_b = b.t().contiguous() if order[1] == "t" else b

    result = run(program, f"run_{CASES.index(case)}", stored_a, stored_b, M * N, threads)

    assert_close(result.view(M, N), a, b)


def test_the_cases_use_every_plan(program: ctypes.CDLL) -> None:
    kinds = {getattr(program, f"kind_{number}")() for number in range(len(CASES))}

    assert kinds == {0, 1, 2}
