"""Convolutions of bfloat16 that multiply pairs of channels, against torch in double precision.

The templates run everywhere: where the CPU has no such instruction, in its software form. Whole
programs use them where the CPU has it; elsewhere the same cases go the way of floats.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.conv_shapes import FORMS, Shape, address, built, close, expected, operands
from tests.kernels.programs import Case, check, graph_of
from tests.kernels.test_convolution import AFTER
from tests.kernels.test_other_cpus import gradients

from pantile.lowering.kernels import matrix_unit
from pantile.lowering.kernels.generate import written

SHAPES = [
    Shape(2, 2, 12, 12, 32, (3, 3)),  # one word of inputs
    Shape(2, 6, 17, 19, 40, (3, 3), padding=(1, 1)),  # several tiles, a last panel of 8
    Shape(3, 32, 13, 13, 64, (3, 3)),
    Shape(5, 48, 4, 4, 34, (3, 3), padding=(1, 1)),  # images side by side in a tile
    Shape(2, 130, 5, 6, 70, (3, 3), padding=(1, 1)),  # several chunks, of unequal length
    Shape(2, 16, 11, 12, 24, (3, 3), (2, 2), (1, 1)),  # stride phases
    Shape(2, 18, 8, 8, 36, (1, 1), (2, 2)),  # a phase that nothing reaches
    Shape(2, 74, 9, 7, 20, (1, 1)),
    Shape(1, 4, 23, 21, 10, (7, 7), (2, 2), (3, 3)),
    Shape(2, 6, 14, 13, 8, (3, 3), (1, 1), (2, 2), (2, 2)),  # dilated
    Shape(1, 8, 15, 16, 18, (2, 5), (3, 2), (1, 2), (2, 3)),  # nothing symmetric
    Shape(2, 6, 5, 5, 10, (3, 3), (1, 1), (4, 4), (1, 1)),  # rows and columns of padding only
    Shape(3, 2, 1, 1, 2, (1, 1)),
    Shape(1, 700, 3, 30, 50, (3, 1), padding=(1, 0)),
]

KERNELS = """
extern "C" void pack{i}(const bf16* w, float* forward, float* input, int t, int T) {{
  pack_forward_pairs<{f}>(w, forward, t, T);
  pack_input_pairs<{b}>(w, input, t, T);
}}
extern "C" void forward{i}(const bf16* x, const float* w, float* y, int t, int T) {{
  using C = {c};
  {forward}, w, t, T, [=](int n, int oh, int ow, int oc, int count, const float* row) INLINE_CALL {{
    float* to = y + (i64)n * C::YN + oh * C::YH + ow * C::YW + oc;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void input{i}(const bf16* dy, const float* w, float* dx, int t, int T) {{
  using C = {c};
  {input}, w, t, T, [=](int n, int h, int wide, int ic, int count, const float* row) INLINE_CALL {{
    float* to = dx + (i64)n * C::XN + h * C::XH + wide * C::XW + ic;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" i64 floats{i}(int what) {{
  return what == 0 ? {f}::packed_forward : {b}::packed_input;
}}
"""
CALLS = {
    "alone": ("conv_forward_pairs<{f}>(x", "conv_input_pairs<{b}>(dy"),
    "shared": (
        "using D = ConvForwardPairs<{f}>; "
        "conv_by<D::NV, D::CHANNELS % D::NR == 0>(conv_plan<D>, (const float*)x",
        "using D = ConvInputPairs<{b}>; "
        "conv_by<D::NV, D::CHANNELS % D::NR == 0>(conv_plan<D>, (const float*)dy",
    ),
}
SOFTWARE = ("-mno-avx512bf16",)


def kernel(number: int, shape: Shape, form: str) -> str:
    """Geometry and results are those of the shape; words have half of the channels."""
    types = {
        "f": forward_words(shape).cpp(),
        "b": replace(shape, outputs=shape.outputs // 2).cpp(),
        "c": shape.cpp(),
    }
    forward, back = (call.format(**types) for call in CALLS[form])
    return KERNELS.format(i=number, forward=forward, input=back, **types)


def forward_words(shape: Shape) -> Shape:
    return replace(shape, inputs=shape.inputs // 2)


@pytest.fixture(scope="module", params=[*((form, ()) for form in FORMS), ("alone", SOFTWARE)])
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    form, options = request.param
    kernels = [kernel(number, shape, form) for number, shape in enumerate(SHAPES)]
    return built(kernels, tmp_path_factory.mktemp("pairs"), *options)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_images_of_pairs_agree_with_torch(library: ctypes.CDLL, number: int, threads: int) -> None:
    shape = SHAPES[number]
    x, w, dy = (tensor.bfloat16() for tensor in operands(shape))
    right, right_dx, _ = expected(shape, x, w, dy)
    size = getattr(library, f"floats{number}")
    size.restype = ctypes.c_long
    forward, back = (torch.full((size(which),), torch.nan) for which in (0, 1))
    y, dx = torch.zeros(dy.shape), torch.zeros(x.shape)
    calls = {"pack": (w, forward, back), "forward": (x, forward, y), "input": (dy, back, dx)}

    for name, tensors in calls.items():
        for t in range(threads):
            getattr(library, f"{name}{number}")(*map(address, tensors), t, threads)

    assert close(y.permute(0, 3, 1, 2), right)
    assert close(dx.permute(0, 3, 1, 2), right_dx)


def ways(x: torch.Tensor, w: torch.Tensor, **options: int) -> set[str]:
    """What a program does by pairs."""
    case = Case("", gradients(lambda x, w: F.conv2d(x, w, **options)), (x, w))
    graph = graph_of(lambda *given: list(case.call(given)), case.inputs)
    found = [function.text for function in written(graph).functions]
    names = ("forward", "input", "weight")
    return {name for name in names if any(f"conv_{name}_pairs<" in text for text in found)}


@pytest.fixture
def with_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU had the instruction, at full speed: programs are written, not run."""
    monkeypatch.setattr(matrix_unit, "multiplies_pairs", lambda: True)


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


@pytest.mark.usefixtures("with_pairs")
def test_even_channels_of_bfloat16_go_in_pairs() -> None:
    assert ways(halves(2, 64, 8, 8), halves(32, 64, 3, 3), padding=1) >= {"forward", "input"}
    assert ways(halves(2, 6, 8, 8), halves(10, 6, 1, 1), stride=2) >= {"forward", "input"}


@pytest.mark.usefixtures("with_pairs")
def test_what_has_no_pairs_goes_the_way_of_floats() -> None:
    assert ways(halves(2, 3, 8, 8), halves(32, 3, 3, 3)) - {"weight"} == {"input"}
    assert ways(halves(2, 4, 8, 8), halves(9, 4, 3, 3)) - {"weight"} == {"forward"}
    assert ways(halves(2, 8, 8, 8), halves(8, 4, 3, 3), groups=2) == set()
    assert ways(halves(2, 8, 8, 8).float(), halves(8, 8, 3, 3).float()) == set()
    assert ways(halves(2, 8, 8, 8).half(), halves(8, 8, 3, 3).half()) == set()


def test_other_cpus_do_not_multiply_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CPU", "x86-64-v4")

    assert ways(halves(2, 8, 8, 8), halves(8, 8, 3, 3)) == set()


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kernel_size = (rng.choice([1, 2, 3, 5]), rng.choice([1, 3, 4]))
    choices = {"stride": [1, 1, 2, 3], "padding": [0, 1, 2], "dilation": [1, 1, 2]}
    options = {name: tuple(rng.choice(some) for _ in "hw") for name, some in choices.items()}
    channels, filters = rng.choice([1, 2, 6, 18, 32, 70]), rng.choice([2, 3, 16, 34, 66])
    x = halves(rng.choice([1, 2, 7]), channels, 9 + rng.randrange(12), 8 + rng.randrange(12))
    if rng.randrange(2):
        x = x.contiguous(memory_format=torch.channels_last)
    weight = halves(filters, channels, *kernel_size)
    if rng.randrange(3) == 0:
        weight = weight.contiguous(memory_format=torch.channels_last)
    kind = rng.choice(sorted(AFTER))
    name = f"{seed} {kind} {tuple(x.shape)} {tuple(weight.shape)} {options}"
    layer = gradients(lambda *given: AFTER[kind](F.conv2d(*given, **options)))
    return Case(name, layer, (x, weight, halves(filters)))


@pytest.mark.parametrize("batch", range(3))
def test_random_layers_are_as_good_as_torchs(batch: int) -> None:
    check([random_case(seed) for seed in range(batch * 6, batch * 6 + 6)], times=2)


def test_images_that_lie_in_odd_steps_are_copied() -> None:
    """Six of seven channels; words would begin at odd places."""
    whole, w = halves(2, 5, 6, 7).permute(0, 3, 1, 2), halves(8, 6, 3, 3)

    check([Case("odd", gradients(lambda x, w: F.conv2d(x[:, 1:], w)), (whole, w))], times=2)
