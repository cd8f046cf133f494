"""The elementary functions of math.h against torch in float64, in units of the last place."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pantile
from pantile.lowering.kernels.build import flags

TEMPLATES = Path(pantile.__file__).parent / "lowering" / "kernels" / "templates"

Function = Callable[..., torch.Tensor]

ONE: dict[str, tuple[Function, float]] = {  # name: (torch's, allowed units in the last place)
    "exp": (torch.exp, 2),
    "expm1": (torch.expm1, 2),
    "log": (torch.log, 2),
    "log1p": (torch.log1p, 2),
    "log2": (torch.log2, 3),
    "log10": (torch.log10, 3),
    "tanh": (torch.tanh, 4),
    "sigmoid": (torch.sigmoid, 4),
    "softplus": (lambda x: torch.nn.functional.softplus(x, threshold=40), 4),
    "erf": (torch.erf, 4),
    "sqrt": (torch.sqrt, 0.51),
    "rsqrt": (torch.rsqrt, 2),
    "sin": (torch.sin, 2),
    "cos": (torch.cos, 2),
    "floor": (torch.floor, 0),
    "ceil": (torch.ceil, 0),
    "round": (torch.round, 0),
    "trunc": (torch.trunc, 0),
    "sign": (torch.sign, 0),
}
TWO: dict[str, tuple[Function, float]] = {
    "pow": (torch.pow, 1),
    "max": (torch.maximum, 0),
    "min": (torch.minimum, 0),
    "fmax": (torch.fmax, 0),
    "fmin": (torch.fmin, 0),
    "fmod": (torch.fmod, 0),
    "remainder": (torch.remainder, 1),
}
POWERS = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 8)
CALLS = {f"f_{name}": 1 for name in ONE} | {f"f_{name}": 2 for name in TWO}
CALLS |= {f"f_pow_whole<{n}>": 1 for n in POWERS}


def kernel(number: int, call: str, inputs: int) -> str:
    operands = ", ".join(("a[i]", "b[i]")[:inputs])
    return (
        f'extern "C" void run_{number}(const float* a, const float* b, float* out, i64 n) {{\n'
        f"  LANEWISE for (i64 i = 0; i < n; i++) out[i] = {call}({operands});\n}}\n"
    )


def source() -> str:
    kernels = (kernel(i, call, inputs) for i, (call, inputs) in enumerate(CALLS.items()))
    text = "\n".join((TEMPLATES / name).read_text() for name in ("vector.h", "math.h"))
    return text + "\n" + "".join(kernels)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, str]:
    folder = tmp_path_factory.mktemp("math")
    (folder / "program.cpp").write_text(source())
    command = ["g++", *flags(), "-shared", "-fopt-info-vec", "program.cpp", "-o", "program.so"]
    done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    return ctypes.CDLL(str(folder / "program.so")), done.stderr


def run(library: ctypes.CDLL, call: str, *inputs: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (inputs[0], inputs[-1], out)]
    function = getattr(library, f"run_{list(CALLS).index(call)}")
    function(*pointers, ctypes.c_long(out.numel()))
    return out


def special() -> torch.Tensor:
    inf, tiny = float("inf"), 1.4e-45
    some = [0.0, tiny, 1e-40, 1.1754944e-38, 1e-30, 1e-8, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 88.7]
    some += [89.0, 103.9, 104.1, 1e4, 8388607.5, 16777216.0, 1e30, 3.4028235e38, inf]
    return torch.tensor([*some, *(-x for x in some), float("nan")])


def every_exponent(step: int) -> torch.Tensor:
    """Floats evenly spread over all bit patterns: every exponent, both signs, NaN."""
    bits = torch.arange(-(2**31), 2**31 - 1, step, dtype=torch.int64).to(torch.int32)
    return bits.view(torch.float32)


def units(result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance of `result` from float64 `expected` in units of the last place of the float32."""
    rounded = expected.to(torch.float32)
    same = (rounded == result) | (rounded.isnan() & result.isnan())
    _, exponent = torch.frexp(expected)
    unit = torch.ldexp(torch.ones_like(expected), exponent.clamp(min=-125) - 24)
    distance = (result.double() - expected).abs() / unit
    distance = torch.where(distance.isnan(), torch.inf, distance)
    return torch.where(same, torch.where(distance < 0.51, distance, 0.0), distance)


def assert_within(call: str, result: torch.Tensor, expected: torch.Tensor, most: float,
                  *inputs: torch.Tensor) -> None:  # fmt: skip
    distance = units(result, expected)
    worst = int(distance.argmax())
    at = [x[worst].item() for x in inputs]
    assert distance[worst] <= most, (
        f"{call}{at} = {result[worst]}, not {expected[worst]}: {distance[worst]} units"
    )


def exact_remainder(x: torch.Tensor, y: torch.Tensor, floored: bool) -> torch.Tensor:
    def one(a: float, b: float) -> float:
        if math.isinf(a) or b == 0 or math.isnan(a) or math.isnan(b):
            return math.nan
        rest = math.fmod(a, b)
        return rest + b if floored and rest and (rest < 0) != (b < 0) else rest

    rests = [one(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return torch.tensor(rests, dtype=torch.float64)


@pytest.mark.parametrize("name", ONE)
def test_function_is_within_its_bound_over_all_exponents(
    built: tuple[ctypes.CDLL, str], name: str
) -> None:
    function, most = ONE[name]
    x = torch.cat([special(), every_exponent(2011), torch.linspace(-110, 110, 1_000_003)])
    if name in ("sin", "cos"):
        x = x[~(x.abs() > 1e13) | x.isinf()]
    expected = function(x.double())
    assert_within(name, run(built[0], f"f_{name}", x), expected, max(most, 0.51), x)


@pytest.mark.parametrize("name", TWO)
def test_function_of_two_is_within_its_bound(built: tuple[ctypes.CDLL, str], name: str) -> None:
    function, most = TWO[name]
    pairs = torch.cartesian_prod(special(), special())
    wide = every_exponent(4_001)
    x = torch.cat([pairs[:, 0], wide, torch.rand(300_000) * 20, torch.randn(300_000) * 4])
    y = torch.cat([
        pairs[:, 1], wide[torch.randperm(len(wide))], torch.randn(300_000) * 10,
        torch.randint(-9, 10, (300_000,)).float(),
    ])  # fmt: skip
    expected = function(x.double(), y.double())
    if name in ("fmod", "remainder"):  # torch's own is no more exact for large quotients
        expected = exact_remainder(x, y, floored=name == "remainder")
    result = run(built[0], f"f_{name}", x, y)
    assert_within(name, result, expected, max(most, 0.51), x, y)


@pytest.mark.parametrize("power", POWERS)
def test_small_whole_powers_multiply(built: tuple[ctypes.CDLL, str], power: int) -> None:
    x = torch.cat([special(), torch.randn(100_003)])
    x = x[(x == 0) | (x.abs() > 1e-4) & (x.abs() < 1e4) | (x.abs() == torch.inf) | x.isnan()]
    expected = x.double().pow(power)
    assert_within(f"{power}", run(built[0], f"f_pow_whole<{power}>", x), expected, max(3, power), x)


def test_every_loop_became_vector_code(built: tuple[ctypes.CDLL, str]) -> None:
    text = source().splitlines()
    loops = {i + 1 for i, line in enumerate(text) if line.startswith("  LANEWISE for (i64 i")}
    vectorised = {int(n) for n in re.findall(r":(\d+):\d+: optimized: loop vectorized", built[1])}
    missing = [text[line - 1] for line in sorted(loops - vectorised)]
    assert loops and not missing
