"""Convolutions as shapes of the C++ templates, and torch's answers in double precision."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import pantile.lowering
from pantile.lowering.kernels.build import flags

TEMPLATES = Path(pantile.lowering.__file__).parent / "kernels" / "templates"
FILES = (
    "vector.h",
    "math.h",
    "halves.h",
    "lanes.h",
    "conv.h",
    "conv_pack.h",
    "conv_forward.h",
    "conv_input.h",
    "conv_weight.h",
    "conv_pairs.h",
    "depthwise.h",
    "winograd.h",
    "winograd_weight.h",
    "winograd_scatter.h",
)


@dataclass(frozen=True)
class Shape:
    """One convolution: the numbers of the C++ template, in its order, but for the output's size."""

    images: int
    inputs: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def settings(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        return self.stride, self.padding, self.dilation

    @property
    def out(self) -> tuple[int, int]:
        sizes = zip(
            (self.height, self.width),
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
            strict=True,
        )
        high, wide = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return high, wide

    def cpp(self, groups: int = 1) -> str:
        """The C++ type; of one group, with the strides of all channels, where there are several."""
        (oh, ow), ic, oc = self.out, self.inputs, self.outputs
        sizes = [self.images, ic // groups, self.height, self.width, oc // groups, oh, ow]
        sizes += [*self.kernel, *self.stride, *self.padding, *self.dilation]
        if groups > 1:
            sizes += [self.height * self.width * ic, self.width * ic, ic, oh * ow * oc, ow * oc, oc]
        return f"Conv<{', '.join(map(str, sizes))}>"


FORMS = ("alone", "shared")
"""Loops of a convolution's own, or those that all share."""


def in_form(form: str, text: str, shared: Mapping[str, str], shapes: Sequence[Shape]) -> list[str]:
    """The kernels of all shapes; `shared` says what is called where loops are shared."""
    for alone, instead in shared.items() if form == "shared" else ():
        assert alone in text
        text = text.replace(alone, instead)
    return [text.format(i=i, c=shape.cpp()) for i, shape in enumerate(shapes)]


def built(kernels: list[str], folder: Path, *options: str) -> ctypes.CDLL:
    text = [(TEMPLATES / name).read_text() for name in FILES] + kernels
    source, library = folder / "program.cpp", folder / "program.so"
    source.write_text("\n".join(text))
    command = ["g++", *flags(), *options, "-shared", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def operands(shape: Shape, groups: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and dy as the kernels read them (channels last in memory), and the weight as torch's."""
    random = torch.Generator().manual_seed(7)
    x = torch.randn(shape.images, shape.height, shape.width, shape.inputs, generator=random)
    dy = torch.randn(shape.images, *shape.out, shape.outputs, generator=random)
    w = torch.randn(shape.outputs, shape.inputs // groups, *shape.kernel, generator=random)
    return x, w, dy


def expected(
    shape: Shape, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, groups: int = 1
) -> list[torch.Tensor]:
    wide = [tensor.double() for tensor in (dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), w)]
    y = torch.nn.functional.conv2d(wide[1], wide[2], None, *shape.settings, groups)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        *wide, [0], *shape.settings, False, [0, 0], groups, [True, True, False]
    )
    return [y, dx, dw]


def close(ours: torch.Tensor, right: torch.Tensor) -> bool:
    return bool((ours.double() - right).abs().max() <= 1e-5 * right.abs().max().clamp_min(1e-30))
