"""The convolution templates against torch in double precision, one small program for all shapes."""

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
    Shape(2, 1, 12, 12, 32, (3, 3)),  # one input channel, no padding
    Shape(2, 3, 17, 19, 40, (3, 3), padding=(1, 1)),  # several tiles, a last panel of 8
    Shape(3, 32, 13, 13, 64, (3, 3)),
    Shape(5, 48, 4, 4, 33, (3, 3), padding=(1, 1)),  # images side by side in a tile
    Shape(2, 20, 9, 40, 16, (3, 3), padding=(1, 1)),  # a border tile at each side, inner ones
    Shape(2, 16, 11, 12, 24, (3, 3), (2, 2), (1, 1)),  # stride phases
    Shape(2, 18, 8, 8, 35, (1, 1), (2, 2)),  # a phase that nothing reaches
    Shape(1, 3, 23, 21, 10, (7, 7), (2, 2), (3, 3)),
    Shape(2, 5, 14, 13, 7, (3, 3), (1, 1), (2, 2), (2, 2)),  # dilated
    Shape(1, 7, 15, 16, 17, (2, 5), (3, 2), (1, 2), (2, 3)),  # nothing symmetric
    Shape(2, 6, 5, 5, 9, (3, 3), (1, 1), (4, 4), (1, 1)),  # rows and columns of padding only
    Shape(3, 1, 1, 1, 1, (1, 1)),
    Shape(17, 9, 1, 1, 11, (3, 3), padding=(1, 1)),
    Shape(1, 70, 3, 30, 50, (3, 1), padding=(1, 0)),
    Shape(2, 4, 6, 6, 3, (4, 4), (4, 4), (3, 3)),
    Shape(2, 2, 10, 1, 130, (5, 1)),  # one column
]

KERNELS = """
extern "C" void pack{i}(const float* w, float* forward, float* input, int t, int T) {{
  using C = {c};
  pack_forward<conv_vectors(C::OC)>(conv_pack_forward<C>, w, forward, t, T);
  pack_input<C::KH * C::KW, conv_vectors(C::IC)>(conv_pack_input<C>, w, input, t, T);
}}
extern "C" void forward{i}(const float* x, const float* w, float* y, int t, int T) {{
  using C = {c};
  conv_forward<C>(x, w, t, T, [&](int n, int oh, int ow, int oc, int count, const float* row)
      INLINE_CALL {{
    float* to = y + (i64)n * C::YN + oh * C::YH + ow * C::YW + oc;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void input{i}(const float* dy, const float* w, float* dx, int t, int T) {{
  using C = {c};
  conv_input<C>(dy, w, t, T, [&](int n, int h, int wide, int ic, int count, const float* row)
      INLINE_CALL {{
    float* to = dx + (i64)n * C::XN + h * C::XH + wide * C::XW + ic;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void weight{i}(const float* x, const float* dy, float* dw, float* scratch, int t,
                          int T) {{
  using C = {c};
  conv_weight<C>(x, dy, scratch, t, T, [&](int kh, int kw, int ic, int oc, int count,
                                           const float* row) INLINE_CALL {{
    float* to = dw + ((i64)(kh * C::KW + kw) * C::IC + ic) * C::OC + oc;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void turned{i}(const float* x, const float* dy, float* dw, float* scratch, int t,
                          int T) {{
  using C = {c};
  if constexpr (C::IC > 4)  // fewer go another way
    conv_weight<C, true>(x, dy, scratch, t, T, [&](int oc, int first, int count,
                                                   const float* row) INLINE_CALL {{
      float* to = dw + (i64)oc * C::IC * C::KH * C::KW + first;
      LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
    }});
}}
extern "C" i64 floats{i}(int what) {{
  using C = {c};
  const i64 sizes[] = {{C::packed_forward, C::packed_input, C::weight_scratch, C::turned_scratch}};
  return sizes[what];
}}
"""


DEPTHWISE = """
extern "C" void pack{i}(const float* w, float* packed, int t, int T) {{
  pack_depthwise<{c}>(w, packed, t, T);
}}
extern "C" void forward{i}(const float* x, const float* w, float* y, int t, int T) {{
  using C = {c};
  depthwise_forward<C>(x, w, t, T, [&](int n, int oh, int ow, int c, int count, const float* row)
      INLINE_CALL {{
    float* to = y + (i64)n * C::YN + oh * C::YH + ow * C::YW + c;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void input{i}(const float* dy, const float* w, float* dx, int t, int T) {{
  using C = {c};
  depthwise_input<C>(dy, w, t, T, [&](int n, int h, int wide, int c, int count, const float* row)
      INLINE_CALL {{
    float* to = dx + (i64)n * C::XN + h * C::XH + wide * C::XW + c;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" void weight{i}(const float* x, const float* dy, float* dw, int t, int T) {{
  using C = {c};
  depthwise_weight<C>(x, dy, t, T, [&](int kh, int kw, int c, int count, const float* row)
      INLINE_CALL {{
    float* to = dw + (kh * C::KW + kw) * C::IC + c;
    LANEWISE for (int j = 0; j < count; j++) to[j] += row[j];
  }});
}}
extern "C" i64 floats{i}() {{ return depthwise_packed<{c}>; }}
"""


class Native:
    """The kernels of one shape, each run by `threads` threads one after the other.

    The epilogues add, so an output that starts as zeros shows a pixel handed over twice or never.
    """

    def __init__(self, library: ctypes.CDLL, number: int, shape: Shape, threads: int) -> None:
        self.library, self.number, self.shape, self.threads = library, number, shape, threads
        size = getattr(library, f"floats{number}")
        size.restype = ctypes.c_long
        self.forward_weight = torch.full((size(0),), torch.nan)
        self.input_weight = torch.full((size(1),), torch.nan)
        self.scratch = torch.full((size(2),), torch.nan)
        self.turned_scratch = torch.full((size(3),), torch.nan)

    def run(self, name: str, *tensors: torch.Tensor) -> None:
        call = getattr(self.library, f"{name}{self.number}")
        for t in range(self.threads):
            call(*map(address, tensors), t, self.threads)

    def pack(self, w: torch.Tensor) -> None:
        self.run("pack", w, self.forward_weight, self.input_weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(self.shape.images, *self.shape.out, self.shape.outputs)
        self.run("forward", x, self.forward_weight, y)
        return y.permute(0, 3, 1, 2)

    def input(self, dy: torch.Tensor) -> torch.Tensor:
        s = self.shape
        dx = torch.zeros(s.images, s.height, s.width, s.inputs)
        self.run("input", dy, self.input_weight, dx)
        return dx.permute(0, 3, 1, 2)

    def weight(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        dw = torch.zeros(*self.shape.kernel, self.shape.inputs, self.shape.outputs)
        self.run("weight", x, dy, dw, self.scratch)
        return dw.permute(3, 2, 0, 1)

    def turned(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """The same, as it lies in torch's weights."""
        dw = torch.zeros(self.shape.outputs, self.shape.inputs, *self.shape.kernel)
        self.run("turned", x, dy, dw, self.turned_scratch)
        return dw


SHARED = {
    "conv_forward<C>(": "using D = ConvForward<C>; "
    "conv_by<D::NV, D::CHANNELS % D::NR == 0>(conv_plan<D>, ",
    "conv_input<C>(": "using D = ConvInput<C>; "
    "conv_by<D::NV, D::CHANNELS % D::NR == 0>(conv_plan<D>, ",
    "conv_weight<C>(": "using S = ConvWeightSizes<C, false>; "
    "conv_weight_by<S::NV, S::REST == S::NR>(conv_weight_plan<C, false>, ",
    "conv_weight<C, true>(": "conv_weight_by<ConvWeightSizes<C, true>::NV, "
    "C::OC % ConvWeightSizes<C, true>::NR == 0, true>(conv_weight_plan<C, true>, ",
}
"""The same calls, of loops that all convolutions share."""


@pytest.fixture(scope="module", params=FORMS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    kernels = in_form(request.param, KERNELS, SHARED, SHAPES)
    return built(kernels, tmp_path_factory.mktemp("conv"))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_all_three_directions_agree_with_torch(
    library: ctypes.CDLL, number: int, threads: int
) -> None:
    shape = SHAPES[number]
    x, w, dy = operands(shape)
    y, dx, dw = expected(shape, x, w, dy)
    native = Native(library, number, shape, threads)
    native.pack(w)
    assert close(native.forward(x), y)
    assert close(native.input(dy), dx)
    assert close(native.weight(x, dy), dw)
    if shape.inputs > 4:
        assert torch.equal(native.turned(x, dy), native.weight(x, dy))


DEPTHWISE_SHAPES = [
    Shape(2, 32, 12, 19, 32, (3, 3), padding=(1, 1)),
    Shape(2, 21, 9, 26, 21, (3, 3), (2, 2), (1, 1)),  # a last vector of 5, stride phases
    Shape(1, 3, 30, 31, 3, (7, 5), (1, 1), (3, 2)),
    Shape(2, 40, 11, 24, 40, (3, 3), (1, 1), (2, 4), (2, 3)),  # dilated, much padding
    Shape(1, 17, 15, 15, 17, (1, 1), (7, 7)),  # most pixels of x are met by nothing
    Shape(3, 1, 1, 1, 1, (3, 3), padding=(1, 1)),
]


@pytest.fixture(scope="module")
def depthwise(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    kernels = [DEPTHWISE.format(i=i, c=shape.cpp()) for i, shape in enumerate(DEPTHWISE_SHAPES)]
    return built(kernels, tmp_path_factory.mktemp("depthwise"))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", range(len(DEPTHWISE_SHAPES)))
def test_depthwise_kernels_agree_with_torch(
    depthwise: ctypes.CDLL, number: int, threads: int
) -> None:
    shape = DEPTHWISE_SHAPES[number]
    x, w, dy = operands(shape, shape.inputs)
    right = expected(shape, x, w, dy, shape.inputs)
    packed = torch.full((getattr(depthwise, f"floats{number}")(),), torch.nan)
    y, dx = torch.zeros_like(dy), torch.zeros_like(x)
    dw = torch.zeros(*shape.kernel, shape.inputs, 1)
    calls = {"pack": (w, packed), "forward": (x, packed, y), "input": (dy, packed, dx)}
    for name, tensors in {**calls, "weight": (x, dy, dw)}.items():
        for t in range(threads):
            getattr(depthwise, f"{name}{number}")(*map(address, tensors), t, threads)
    ours = (y.permute(0, 3, 1, 2), dx.permute(0, 3, 1, 2), dw.permute(2, 3, 0, 1))
    assert all(close(one, other) for one, other in zip(ours, right, strict=True))


def test_a_group_is_a_convolution_with_the_strides_of_all_channels(tmp_path: Path) -> None:
    shape, groups = Shape(2, 40, 9, 10, 54, (3, 3), (1, 1), (1, 1)), 2
    library = built([KERNELS.format(i=0, c=shape.cpp(groups))], tmp_path)
    x, w, dy = operands(shape, groups)
    y, dx, weights, turned = torch.zeros_like(dy), torch.zeros_like(x), [], []
    for group in range(groups):
        native = Native(library, 0, shape, 2)
        wanted, given = slice(27 * group, 27 * group + 27), slice(20 * group, 20 * group + 20)
        native.pack(w[wanted].contiguous())
        native.run("forward", x[..., given], native.forward_weight, y[..., wanted])
        native.run("input", dy[..., wanted], native.input_weight, dx[..., given])
        dw = torch.zeros(3, 3, 20, 27)
        native.run("weight", x[..., given], dy[..., wanted], dw, native.scratch)
        weights.append(dw.permute(3, 2, 0, 1))
        turned.append(torch.zeros(27, 20, 3, 3))
        native.run("turned", x[..., given], dy[..., wanted], turned[-1], native.turned_scratch)
    ours = (y.permute(0, 3, 1, 2), dx.permute(0, 3, 1, 2), torch.cat(weights))
    right = expected(shape, x, w, dy, groups)
    assert all(close(one, other) for one, other in zip(ours, right, strict=True))
    assert torch.equal(torch.cat(turned), ours[2])
