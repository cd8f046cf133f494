"""Winograd's convolutions against torch in double precision, and how much accuracy they cost."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from tests.kernels.conv_shapes import (
    FORMS,
    Shape,
    address,
    built,
    close,
    expected,
    in_form,
    operands,
)

SHAPES = [
    Shape(3, 32, 13, 13, 64, (3, 3)),  # an odd result: tiles at the border are cut
    Shape(5, 48, 4, 4, 32, (3, 3), padding=(1, 1)),  # no tile lies inside
    Shape(2, 16, 9, 40, 16, (3, 3), padding=(1, 1)),
    Shape(1, 64, 3, 3, 48, (3, 3)),  # one tile, one pixel of it
    Shape(2, 16, 5, 7, 80, (3, 3), padding=(2, 2)),  # a last panel of one vector
    Shape(1, 144, 6, 5, 96, (3, 3), padding=(0, 1)),  # a sum that is put aside on the way
    Shape(40, 16, 8, 8, 16, (3, 3), padding=(1, 1)),  # several blocks
    Shape(1, 272, 20, 20, 272, (3, 3), padding=(1, 2)),  # a weight that is read from afar
    Shape(3, 48, 12, 31, 64, (3, 3)),  # an image of several bands, two panels
    Shape(40, 48, 6, 5, 16, (3, 3)),  # many images in a group
]

KERNELS = """
extern "C" void pack{i}(const float* w, float* forward, float* input, float* scatter,
                        int t, int T) {{
  using C = {c};
  pack_winograd_forward<conv_vectors(C::OC)>(winograd_pack_forward<C>, w, forward, t, T);
  pack_winograd_input<conv_vectors(C::IC)>(winograd_pack_input<C>, w, input, t, T);
  pack_winograd_scatter<conv_vectors(C::IC)>(winograd_pack_scatter<C>, w, scatter, t, T);
}}
extern "C" void forward{i}(const float* x, const float* w, float* scratch, float* y, int t,
                           int T) {{
  using C = {c};
  winograd<WinogradForward<C>>(x, w, scratch, t, T, [&](int n, int oh, int ow, int oc, int count,
                                                        const float* row) INLINE_CALL {{
    float* to = y + (i64)n * C::YN + oh * C::YH + ow * C::YW + oc;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void input{i}(const float* dy, const float* w, float* scratch, float* dx, int t,
                         int T) {{
  using C = {c};
  winograd<WinogradInput<C>>(dy, w, scratch, t, T, [&](int n, int h, int wide, int ic, int count,
                                                       const float* row) INLINE_CALL {{
    float* to = dx + (i64)n * C::XN + h * C::XH + wide * C::XW + ic;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void scatter{i}(const float* dy, const float* w, float* scratch, float* dx, int t,
                           int T) {{
  using C = {c};
  winograd_scatter<C>(dy, w, scratch, t, T, [&](int n, int h, int wide, int ic, int count,
                                                const float* row) INLINE_CALL {{
    float* to = dx + (i64)n * C::XN + h * C::XH + wide * C::XW + ic;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void weight{i}(const float* x, const float* dy, float* scratch, float* dw, int t,
                          int T) {{
  using C = {c};
  winograd_weight<C>(x, dy, scratch, t, T, [&](int kh, int kw, int ic, int oc, int count,
                                               const float* row) INLINE_CALL {{
    float* to = dw + ((i64)(kh * C::KW + kw) * C::IC + ic) * C::OC + oc;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void turned{i}(const float* x, const float* dy, float* scratch, float* dw, int t,
                          int T) {{
  using C = {c};
  winograd_weight<C, true>(x, dy, scratch, t, T, [&](int oc, int first, int count,
                                                     const float* row) INLINE_CALL {{
    float* to = dw + (i64)oc * C::IC * 9 + first;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" i64 floats{i}(int what) {{
  using C = {c};
  const i64 sizes[] = {{WinogradForward<C>::packed, WinogradInput<C>::packed,
                       WinogradScatter<C>::packed, WinogradForward<C>::scratch,
                       WinogradInput<C>::scratch, WinogradScatter<C>::scratch,
                       WinogradWeight<C>::scratch}};
  return sizes[what];
}}
"""


SHARED = {
    "winograd<WinogradForward<C>>(": "using S = WinogradForward<C>; "
    "winograd_by<S::NV, S::LAST == S::NR>(winograd_plan<S>, ",
    "winograd<WinogradInput<C>>(": "using S = WinogradInput<C>; "
    "winograd_by<S::NV, S::LAST == S::NR>(winograd_plan<S>, ",
    "winograd_scatter<C>(": "using S = WinogradScatter<C>; "
    "winograd_scatter_by<S::NV, S::LAST == S::NR>(winograd_scatter_plan<C>, ",
    "winograd_weight<C>(": "using S = WinogradForward<C>; "
    "winograd_weight_by<S::NV, S::LAST == S::NR>(winograd_weight_plan<C>, ",
    "winograd_weight<C, true>(": "using S = WinogradForward<C>; "
    "winograd_weight_by<S::NV, S::LAST == S::NR, true>(winograd_weight_plan<C>, ",
}
"""The same calls, of loops that all convolutions share."""


@pytest.fixture(scope="module", params=FORMS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    kernels = in_form(request.param, KERNELS, SHARED, SHAPES)
    return built(kernels, tmp_path_factory.mktemp("winograd"))


class Native:
    """The kernels of one shape, each run by `threads` threads one after the other.

    Scratch and packed weights are filled with NaN, so reading what nobody wrote would show; the
    epilogues add, so a pixel that is handed over twice or never would.
    """

    def __init__(self, library: ctypes.CDLL, number: int, threads: int) -> None:
        self.library, self.number, self.threads = library, number, threads
        sizes = getattr(library, f"floats{number}")
        sizes.restype = ctypes.c_long
        memory = [torch.full((sizes(what),), torch.nan) for what in range(7)]
        self.packed, self.scratch = memory[:3], memory[3:]

    def run(self, name: str, *tensors: torch.Tensor) -> None:
        call = getattr(self.library, f"{name}{self.number}")
        for t in range(self.threads):
            call(*map(address, tensors), t, self.threads)

    def all(self, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        """The result, and both gradients, each in both ways."""
        y, dx, scattered = torch.zeros_like(dy), torch.zeros_like(x), torch.zeros_like(x)
        dw, turned = torch.zeros(3, 3, x.shape[3], dy.shape[3]), torch.zeros_like(w)
        self.run("pack", w, *self.packed)
        self.run("forward", x, self.packed[0], self.scratch[0], y)
        self.run("input", dy, self.packed[1], self.scratch[1], dx)
        self.run("scatter", dy, self.packed[2], self.scratch[2], scattered)
        self.run("weight", x, dy, self.scratch[3], dw)
        self.run("turned", x, dy, self.scratch[3], turned)
        images = [image.permute(0, 3, 1, 2) for image in (y, dx, scattered)]
        return [*images, dw.permute(3, 2, 0, 1), turned]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_all_three_directions_agree_with_torch(
    library: ctypes.CDLL, number: int, threads: int
) -> None:
    x, w, dy = operands(SHAPES[number])
    ours = Native(library, number, threads).all(x, w, dy)
    y, dx, dw = expected(SHAPES[number], x, w, dy)
    right = [y, dx, dx, dw, dw]
    assert all(close(one, other) for one, other in zip(ours, right, strict=True))


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_threads_do_not_change_a_bit(library: ctypes.CDLL, number: int) -> None:
    given = operands(SHAPES[number])
    alone, shared = (Native(library, number, threads).all(*given) for threads in (1, 3))
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))


def test_it_is_as_exact_as_torch(tmp_path: Path) -> None:
    """Of what eager loses against float64, at most twice as much is lost, in each direction."""
    shape = Shape(4, 256, 12, 12, 128, (3, 3), padding=(1, 1))
    library = built([KERNELS.format(i=0, c=shape.cpp())], tmp_path)
    x, w, dy = operands(shape)
    narrow = dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), w
    y = torch.nn.functional.conv2d(narrow[1], narrow[2], None, *shape.settings)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        *narrow, [0], *shape.settings, False, [0, 0], 1, [True, True, False]
    )
    ours = Native(library, 0, 1).all(x, w, dy)
    exact_y, exact_dx, exact_dw = expected(shape, x, w, dy)
    right = [exact_y, exact_dx, exact_dx, exact_dw, exact_dw]
    for one, eager, exact in zip(ours, (y, dx, dx, dw, dw), right, strict=True):
        assert (one - exact).norm() <= 2 * (eager - exact).norm()
