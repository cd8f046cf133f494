"""Pieces of models, captured as a user's model is, and priced for a chip.

A layer that repeats is captured once. Its input is a parameter here, so that the gradient for the
layer before it is part of the piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import convnets, transformers
from pantile.capture.forward import Request, capture
from pantile.capture.module_state import ModuleState
from pantile.machine.cost import CostSettings
from pantile.machine.extract import records_of
from pantile.machine.records import ProgramRecord
from pantile.machine.units import Unit, merge, units_of
from pantile.program.structure import flatten

DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Piece:
    """A piece by its kind, its sizes, the micro-batch and the dtype."""

    kind: str
    sizes: tuple[int, ...]
    batch: int
    dtype: str = "float16"
    training: bool = True


class _Fed(nn.Module):
    """A piece in the middle: its input has a gradient."""

    def __init__(self, inner: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.inner, self.x = inner, nn.Parameter(x)

    def forward(self, *rest: Tensor) -> Tensor:
        """The loss of the piece, or the sum of what it gives on."""
        out: Tensor = self.inner(self.x, *rest)
        return out if out.dim() == 0 else out.sum()


class _First(nn.Module):
    """A piece at the start: its input comes from the host."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        """The loss of the piece, or the sum of what it gives on."""
        out: Tensor = self.inner(*inputs)
        return out if out.dim() == 0 else out.sum()


def _ids(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int32)


def _labels(batch: int, *length: int) -> Tensor:
    return torch.zeros(batch, *length, dtype=torch.int64)


def _layer(**flags: Any) -> Callable[..., Any]:
    def build(batch: int, length: int, width: int, heads: int) -> Any:
        return transformers.Layer(width, heads, **flags), (batch, length, width), ()

    return build


def _head(module: Callable[..., nn.Module], labels: bool = True) -> Callable[..., Any]:
    def build(batch: int, length: int, width: int, *sizes: int) -> Any:
        return module(width, *sizes), (batch, length, width), (_labels(batch, length),)

    return build


def _classes(mean: bool) -> Callable[..., Any]:
    def build(batch: int, length: int, width: int) -> Any:
        head = transformers.Classes(width, mean=mean)
        return head, (batch, length, width), (_labels(batch),)

    return build


def _embedding(batch: int, length: int, width: int, words: int, segments: int) -> Any:
    module = transformers.TokenEmbedding(words, width, length, segments=bool(segments))
    return module, None, (_ids(batch, length),)


def _patches(batch: int, width: int, size: int, extra: int) -> Any:
    module = transformers.Patches(width, size, (224 // size) ** 2, extra=extra)
    return module, None, (torch.zeros(batch, 3, 224, 224),)


def _swin(batch: int, side: int, width: int, heads: int, shifted: int) -> Any:
    module = transformers.SwinLayer(width, heads, side, shifted=bool(shifted))
    return module, (batch, side * side, width), ()


def _residual(batch: int, depth: int, groups: int) -> Any:
    depths = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    module = convnets.Residual(depths, groups=groups, width=64 if groups == 1 else 4)
    return module, None, (torch.zeros(batch, 3, 224, 224, dtype=torch.uint8), _labels(batch))


def _efficient(batch: int, variant: int, group: int, expand: int) -> Any:
    wide, deep, size = {0: (1.0, 1.0, 224), 4: (1.4, 1.8, 380)}[variant]
    rows = [(3, 1, 1, 16, 1), (3, 2, expand, 24, 2), (5, 2, expand, 40, 2), (3, 2, expand, 80, 3)]
    rows += [(5, 1, expand, 112, 3), (5, 2, expand, 192, 4), (3, 1, expand, 320, 1)]
    scaled = [
        (k, s, e, int(wide * out + 4) // 8 * 8, -int(-n * deep // 1)) for k, s, e, out, n in rows
    ]
    module = convnets.MobileNet(scaled, int(wide * 32 + 4) // 8 * 8, group)
    images = torch.zeros(batch, 3, size, size, dtype=torch.uint8)
    return module, None, (images, _labels(batch))


_BUILDERS: dict[str, Callable[..., Any]] = {
    "bert layer": _layer(masked=True),
    "vit layer": _layer(norm_first=True, separate=True),
    "gpt layer": _layer(norm_first=True, masked=True),
    "embedding": _embedding,
    "masked words": lambda b, s, w, words, hidden: (
        transformers.MaskedWords(words, w, hidden),
        (b, s, w),
        (_labels(b, s),),
    ),
    "next word": lambda b, s, w, words: (
        transformers.NextWord(words, w),
        (b, s, w),
        (_labels(b, s),),
    ),
    "span": _head(transformers.Span),
    "patches": _patches,
    "classes": _classes(mean=False),
    "classes of mean": _classes(mean=True),
    "swin layer": _swin,
    "swin merge": lambda b, side, w: (transformers.Merge(w, side), (b, side * side, w), ()),
    "subsampling": lambda b, frames, w, bands: (
        transformers.Subsampling(w, bands),
        None,
        (torch.zeros(b, frames, bands),),
    ),
    "conformer layer": lambda b, s, w, heads, inner, kernel: (
        transformers.ConformerLayer(w, heads, inner, kernel),
        (b, s, w),
        (),
    ),
    "speech decoder": lambda b, s, w, heads, words, layers, inner, text: (
        transformers.SpeechDecoder(w, heads, words, layers, inner),
        (b, s, w),
        (_labels(b, text),),
    ),
    "residual": _residual,
    "efficient": _efficient,
}


def _folded(module: nn.Module) -> nn.Module:
    """For inference, norms are part of the convolutions before them."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, nn.Identity())
    return module


@lru_cache(maxsize=256)
def record_of(piece: Piece) -> ProgramRecord:
    """The records of a piece."""
    inner, shape, rest = _BUILDERS[piece.kind](piece.batch, *piece.sizes)
    dtype = DTYPES[piece.dtype]
    module = _First(inner) if shape is None else _Fed(inner, torch.zeros(shape))
    module.to(dtype).train(piece.training)
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in rest]
    if not piece.training and piece.kind == "residual":
        module, inputs = _folded(inner).to(dtype).eval(), inputs[:1]
    tensors, structure = flatten((tuple(inputs), {}))
    request = Request(
        module,
        module,
        ModuleState.of(module),
        structure,
        tensors,
        [f"input{i}" for i in range(len(tensors))],
        training=piece.training,
    )
    return records_of(capture(request).program)


@lru_cache(maxsize=2048)
def unit_of(piece: Piece, settings: CostSettings, *, parts: bool = False) -> tuple[Unit, ...]:
    """A piece as one unit, or as the units of its modules."""
    record = record_of(piece)
    units = units_of(record, settings, finest=0.12 if parts else 9.0)
    # What the wrapper adds: the input that is a parameter.
    fed = max(
        (t.bytes for t in record.tensors if t.kind == "parameter" and t.name == "x"), default=0
    )
    # A word's score uses the table its embedding comes from: those weights are there already.
    shared = {"x", "inner.decoder.weight"}
    clean = [
        replace(unit, parameters=tuple(p for p in unit.parameters if p.name not in shared))
        for unit in units
    ]
    if parts:
        return tuple(clean)
    merged = merge(clean, piece.kind)
    return (replace(merged, border_bytes=fed or merged.border_bytes),)
