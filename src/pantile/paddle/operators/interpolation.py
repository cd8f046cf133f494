"""Resizing, with Paddle's rules for where an output pixel lies in the input.

    align_corners            source = k · (in - 1) / (out - 1)
    align_mode 1             source = k · ratio
    align_mode 0             source = (k + 0.5) · ratio - 0.5
    nearest                  the source rounded (align_corners) or cut

`ratio` is in / out, or 1 / scale where a scale was given. Positions are computed in float32, as
Paddle's kernels do: in float64 a position could fall on the other side of a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from pantile.paddle.call import Call, Table, Tensor, Translation


@dataclass(frozen=True)
class _Resize:
    """What one resize operator asks for."""

    sizes: list[int]
    scales: list[float]
    corners: bool
    mode: int

    def ratio(self, place: int, size: int) -> np.float32:
        """Input pixels per output pixel."""
        wanted = self.sizes[place]
        if self.corners:
            return np.float32((size - 1) / (wanted - 1)) if wanted > 1 else np.float32(0)
        scale = self.scales[place] if self.scales else 0.0
        return np.float32(1 / np.float32(scale)) if scale > 0 else np.float32(size / wanted)


def _resize_of(call: Call, x: Tensor) -> _Resize:
    spatial = x.dim() - 2
    scales = call.numbers("scale", [])
    given = call.optional("Scale")
    if given is not None:
        scales = [float(scale) for scale in given.reshape(-1)]
    if len(scales) != spatial:
        scales = scales * spatial if len(scales) == 1 else []
    names = ("out_d", "out_h", "out_w")[3 - spatial :]
    sizes = [call.integer(name, -1) for name in names]
    if call.has("SizeTensor") or call.has("OutSize"):
        sizes, scales = call.known_integers(("SizeTensor", "OutSize"), "out_w"), []
    elif scales and all(scale > 0 for scale in scales):
        sizes = [int(n * np.float32(scale)) for n, scale in zip(x.shape[2:], scales, strict=True)]
    return _Resize(sizes, scales, call.flag("align_corners"), call.integer("align_mode", 1))


def _nearest(x: Tensor, resize: _Resize) -> Tensor:
    for place, wanted in enumerate(resize.sizes):
        size = x.shape[2 + place]
        source = resize.ratio(place, size) * np.arange(wanted, dtype=np.float32)
        if resize.corners:
            source = source + np.float32(0.5)
        index = torch.from_numpy(np.minimum(source.astype(np.int64), size - 1))
        x = x.index_select(2 + place, index)
    return x


def _linear(x: Tensor, resize: _Resize) -> Tensor:
    for place, wanted in enumerate(resize.sizes):
        size = x.shape[2 + place]
        ratio, steps = resize.ratio(place, size), np.arange(wanted, dtype=np.float32)
        half = resize.mode == 0 and not resize.corners
        source = ratio * (steps + np.float32(0.5)) - np.float32(0.5) if half else ratio * steps
        source = np.maximum(source, 0)
        low = np.minimum(source.astype(np.int64), size - 1)
        high = np.minimum(low + 1, size - 1)
        shape = [1] * x.dim()
        shape[2 + place] = -1
        share = torch.from_numpy(source - low.astype(np.float32)).to(x.dtype).reshape(shape)
        lower = x.index_select(2 + place, torch.from_numpy(low))
        upper = x.index_select(2 + place, torch.from_numpy(high))
        x = lower * (1 - share) + upper * share
    return x


def _cubic(x: Tensor, resize: _Resize) -> Tensor:
    if resize.scales and not resize.corners:
        return F.interpolate(
            x,
            scale_factor=resize.scales,
            mode="bicubic",
            align_corners=False,
            recompute_scale_factor=False,
        )
    return F.interpolate(x, size=resize.sizes, mode="bicubic", align_corners=resize.corners)


def _translation(method: str) -> Translation:
    resized = {"nearest": _nearest, "bicubic": _cubic}.get(method, _linear)

    def translate(call: Call) -> None:
        x = call.tensor()
        last = not call.text("data_layout", "NCHW").startswith("NC")
        if last:
            x = x.movedim(-1, 1)
        y = resized(x, _resize_of(call, x))
        call.put(y.movedim(1, -1) if last else y)

    return translate


TABLE: Table = {
    f"{method}_interp_v2": _translation(method)
    for method in ("bicubic", "bilinear", "linear", "nearest", "trilinear")
}
