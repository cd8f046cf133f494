"""The conversions of halves.h, for each width of vectors, against torch's: all the same bits."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch

import pantile
from pantile.lowering.kernels.build import CPU, flags

TEMPLATES = Path(pantile.__file__).parent / "lowering" / "kernels" / "templates"
INF = float("inf")
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

KERNELS = """
extern "C" int lanes() {{ return LANES; }}
extern "C" void {kind}_to_float(const {kind}* from, float* to, i64 n) {{
  LANEWISE for (i64 i = 0; i < n; i++) to[i] = {kind}_value(from[i].bits);
}}
extern "C" void float_to_{kind}(const float* from, {kind}* to, i64 n) {{
  LANEWISE for (i64 i = 0; i < n; i++) to[i].bits = {kind}_bits(from[i]);
}}
extern "C" void {kind}_vectors(const {kind}* from, float* to, i64 n) {{
  i64 i = 0;
  for (; i + LANES <= n; i += LANES) store(to + i, load(from + i));
  store(to + i, load_first(from + i, n - i));
}}
"""


@pytest.fixture(scope="module", params=["native", "x86-64-v3", "x86-64"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The library, and what the compiler says of its loops."""
    folder = tmp_path_factory.mktemp("halves")
    text = "\n".join((TEMPLATES / name).read_text() for name in ("vector.h", "math.h", "halves.h"))
    kernels = [KERNELS.format(kind=kind) for kind in TYPES]
    kernels[1] = kernels[1].replace('extern "C" int lanes() { return LANES; }', "")
    (folder / "program.cpp").write_text(text + "".join(kernels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CPU, request.param)
        command = ["g++", *flags(), "-shared", "-fopt-info-vec", "program.cpp", "-o", "program.so"]
    done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    return ctypes.CDLL(str(folder / "program.so")), done.stderr


def converted(library: ctypes.CDLL, name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    guard = 64
    to = torch.full((x.numel() + guard,), 7.0, dtype=dtype)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, to)]
    getattr(library, name)(*pointers, ctypes.c_long(x.numel()))
    return to[: x.numel()]


def assert_same(ours: torch.Tensor, torchs: torch.Tensor, given: torch.Tensor) -> None:
    """The same numbers, zeros with their sign; any NaN for a NaN."""
    whole = torch.int32 if ours.dtype is torch.float32 else torch.int16
    same = (ours.view(whole) == torchs.view(whole)) | (ours.isnan() & torchs.isnan())
    bad = ~same
    assert same.all(), (given[bad][:4], ours[bad][:4], torchs[bad][:4])


def all_halves(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("kind", TYPES)
def test_every_half_is_the_float_of_the_same_value(built, kind: str) -> None:
    x = all_halves(TYPES[kind])

    for name in (f"{kind}_to_float", f"{kind}_vectors"):
        assert_same(converted(built[0], name, x, torch.float32), x.float(), x)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("count", [1, 3, 5, 17, 31])
def test_the_first_numbers_of_a_vector_are_followed_by_zeros(built, kind: str, count: int) -> None:
    x = torch.randn(count).to(TYPES[kind])
    to = torch.full((64,), 7.0)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, to)]

    getattr(built[0], f"{kind}_vectors")(*pointers, ctypes.c_long(count))

    whole = -(-(count + 1) // built[0].lanes()) * built[0].lanes()
    assert torch.equal(to[:count], x.float())
    assert (to[count:whole] == 0).all() and (to[whole:] == 7).all()


@pytest.mark.parametrize("kind", TYPES)
def test_every_float_goes_to_the_nearest_half_and_ties_to_the_even_one(built, kind: str) -> None:
    dtype = TYPES[kind]
    exact = all_halves(dtype).float()
    exact = exact[exact.isfinite()].sort().values
    middle = ((exact[1:].double() + exact[:-1].double()) / 2).float()
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-INF, INF)]
    spread = torch.arange(-(2**31), 2**31 - 1, 3001).to(torch.int32).view(torch.float32)
    edge = torch.tensor([65504.0, 65519.99, 65520.0, 65536.0, 3.4028235e38, 3.39e38, 1e-45, 2e-8])
    x = torch.cat([exact, middle, *beside, spread, edge, -edge])

    assert_same(converted(built[0], f"float_to_{kind}", x, dtype), x.to(dtype), x)


def test_the_loops_of_conversions_become_vector_code(built) -> None:
    loops = set(re.findall(r":(\d+):\d+: optimized: loop vectorized", built[1]))

    assert len(loops) >= 4
