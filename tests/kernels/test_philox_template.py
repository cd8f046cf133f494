"""Random bits of our kernels: the published vectors, and the same bits for every CPU and thread."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.kernels.programs import Case, check
from tests.unit.passes.test_philox import PUBLISHED, signed

import pantile
from pantile.lowering.kernels.build import CPU, flags
from pantile.passes.philox import PHILOX, philox

TEMPLATES = Path(pantile.__file__).parent / "lowering" / "kernels" / "templates"
CPUS = ["native", "x86-64-v3", "x86-64"]
SEEDS = [0, 1, -1, 1 << 31, 1 << 32, 0x3AD38F0912BC77A1]

SOURCE = """
extern "C" void draw(const i32* index, i64 seed, i64* out, i64 n) {
  LANEWISE for (i64 i = 0; i < n; i++) out[i] = i_philox(index[i], seed);
}
extern "C" void draw_10(const i32* index, i64 seed, i64* out, i64 n) {
  LANEWISE for (i64 i = 0; i < n; i++) out[i] = i_philox<10>(index[i], seed);
}
extern "C" void drop(const float* __restrict x, float* __restrict out, i64 seed, int n) {
  LANEWISE for (int i = 0; i < n; i++) {
    const i32 word = (i32)i_philox(i, seed);
    const float u = (float)(word >> 8 & 0xffffff) * 0x1p-24f;
    out[i] = u < 0.9f ? x[i] : 0.f;
  }
}
"""


def source() -> str:
    return "\n".join((TEMPLATES / name).read_text() for name in ("vector.h", "math.h")) + SOURCE


@pytest.fixture(scope="module", params=CPUS)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ctypes.CDLL, str]:
    """The CPU that code was written for, the code, and what the compiler says of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CPU, request.param)
        command = ["g++", *flags(), "-shared", "-fopt-info-vec", "program.cpp", "-o", "program.so"]
    folder = tmp_path_factory.mktemp("philox")
    (folder / "program.cpp").write_text(source())
    done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    return request.param, ctypes.CDLL(str(folder / "program.so")), done.stderr


def drawn(library: ctypes.CDLL, name: str, index: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty(index.shape, dtype=torch.int64)
    pointers = ctypes.c_void_p(index.data_ptr()), ctypes.c_void_p(out.data_ptr())
    getattr(library, name)(
        pointers[0], ctypes.c_long(seed), pointers[1], ctypes.c_long(out.numel())
    )
    return out


def test_ten_rounds_give_the_published_vectors(built: tuple[str, ctypes.CDLL, str]) -> None:
    for counter, key, result in PUBLISHED:
        index = torch.full((41,), signed(counter[0], 32), dtype=torch.int32)

        bits = drawn(built[1], "draw_10", index, signed(counter[1] << 32 | key, 64))

        assert bits.tolist() == [signed(result[1] << 32 | result[0], 64)] * 41


@pytest.mark.parametrize("seed", SEEDS)
def test_code_for_every_cpu_draws_the_same_bits(
    built: tuple[str, ctypes.CDLL, str], seed: int
) -> None:
    ends = torch.tensor([2**31 - 1, -1, -(2**31)], dtype=torch.int32)
    index = torch.cat([torch.arange(1000, dtype=torch.int32), ends])

    bits = drawn(built[1], "draw", index, seed)

    assert torch.equal(bits, philox(index, torch.tensor(seed)))


def test_every_loop_became_vector_code(built: tuple[str, ctypes.CDLL, str]) -> None:
    cpu, _, said = built
    if cpu == "x86-64":
        pytest.skip("it has no products that are wide enough")

    text = source().splitlines()
    loops = {i + 1 for i, line in enumerate(text) if line.startswith("  LANEWISE for (")}
    vectorised = {int(n) for n in re.findall(r":(\d+):\d+: optimized: loop vectorized", said)}

    assert len(loops) == 3
    assert loops <= vectorised


def site(shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.int32).view(shape)


def test_kernels_draw_what_the_definition_says_with_any_number_of_threads() -> None:
    seed = torch.tensor(0x3AD38F0912BC77A1)
    rows, image = torch.randn(67, 129), torch.randn(2, 5, 7, 9)
    check(
        [
            Case("bits", lambda s: PHILOX(site((67, 129)), s), (seed,)),
            Case("turned", lambda s: PHILOX(site((67, 129)).t(), s), (seed,)),
            Case("both words", lambda s: halves(PHILOX(site((501,)), s)), (seed,)),
            Case("dropout", lambda x, s: dropped(x, PHILOX(site((67, 129)), s)), (rows, seed)),
            Case("images", lambda x, s: dropped(x, PHILOX(site(x.shape), s)), (image, seed)),
        ]
    )


def halves(bits: torch.Tensor) -> list[torch.Tensor]:
    return [bits.to(torch.int32), torch.bitwise_right_shift(bits, 32).to(torch.int32)]


def dropped(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    top = torch.bitwise_right_shift(bits.to(torch.int32), 8) & 0xFFFFFF
    kept = top.float() * 2.0**-24 < 0.9
    return (x * 2 + 1) * kept
